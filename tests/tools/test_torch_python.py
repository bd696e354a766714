"""Goal: a file of torch costs nothing but an error, whatever it claims, and kv-admin starts no code
but torch's and Cairn's."""

import io
import os
import pickle
import struct
import sys
import zipfile

import pytest
import torch

from tool_programs import run_interop, run_program

CALL = b"\x80\x02c__builtin__\n%s\n("


def text(value, code=b"X", size="<I"):
    return code + struct.pack(size, len(value)) + value


def archive(pickled, *members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("x/data.pkl", pickled)
        for name, data in members:
            file.writestr(name, data)
    return out.getvalue()


def overlapping():
    """Two members that are the same bytes."""
    data = archive(b"\x80\x02}.", ("x/data/0", bytes(64)), ("x/data/1", bytes(64)))
    begin, end = data.find(b"PK\x01\x02"), data.find(b"PK\x05\x06")
    first, second = (data.find(b"x/data/%d" % i, begin) for i in (0, 1))
    offset = data[first - 4 : first]  # of the local header, in the record of the directory
    return data[: second - 4] + offset + data[second:end] + data[end:]


def long_directory():
    """An end record that states a directory of nearly 4 GiB, in a file of that size."""
    size = 0xFFFFF000
    return size, struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, size - 4, 4, 0)


def repeated(operations, count=100_000):
    """A pickle that makes a text of 1 MB and then repeats operations on it."""
    return b"\x80\x04]" + text(b"a" * 1_000_000) + b"\x940(" + operations * count + b"e."


NESTED = b"\x80\x02}" + b")" + b"\x85" * 500_000 + b"Ns."
HOSTILE = {
    "bytearray of a TiB": archive(CALL % b"bytearray" + b"\x8a\x06" + bytes(5) + b"\x01tR."),
    "bytes of a TiB": archive(CALL % b"bytes" + b"\x8a\x06" + bytes(5) + b"\x01tR."),
    "eval": archive(CALL % b"eval" + text(b"open('/nowhere')") + b"tR."),
    "key that is nested": archive(NESTED),
    "names of 100 GB": archive(repeated(b"h\x00h\x00\x93")),
    "encoded texts of 100 GB": archive(
        repeated(b"c_codecs\nencode\nh\x00" + text(b"latin1") + b"\x86R")
    ),
    "bytes that are missing": archive(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"."),
    "bytearray that is missing": archive(b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"."),
    "length that is a text": archive(
        b"\x80\x02(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu")
        + text(b"a" * 1000) + b"tQ."
    ),
    "members that overlap": overlapping(),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_ends_with_one_error(tmp_path, kind):
    (tmp_path / "bad.pt").write_bytes(HOSTILE[kind])
    finished = run_interop("import", tmp_path / "s", "--step", 1, tmp_path / "bad.pt")
    assert finished.status == 2 and "bad.pt" in finished.err
    assert not (tmp_path / "s").exists()


def test_a_directory_of_an_archive_is_not_read_whatever_its_size(tmp_path):
    size, end = long_directory()
    with open(tmp_path / "bad.pt", "wb") as file:
        file.write(b"PK\x03\x04")
        file.seek(size)
        file.write(end)
    finished = run_interop("import", tmp_path / "s", "--step", 1, tmp_path / "bad.pt")
    assert finished.status == 2 and "directory" in finished.err


def test_code_in_the_current_directory_is_not_run(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    for module in ("torch", "cairn", "argparse", "site"):
        (tmp_path / f"{module}.py").write_text("open('ran', 'w')")
    finished = run_program("kv-admin", "import", "s", "--step", 1, "in.pt", cwd=tmp_path)
    assert finished.status == 0, finished.err
    assert not (tmp_path / "ran").exists()


def test_a_python_without_torch_is_one_error(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    for chosen, why in ((python, "No module named 'torch'"), ("/nowhere", "cannot be started")):
        finished = run_program(
            "kv-admin", "import", tmp_path / "s", "--step", 1, tmp_path / "in.pt",
            env={**os.environ, "CAIRN_PYTHON": str(chosen)},
        )  # fmt: skip
        assert finished.status == 2
        assert why in finished.err and "CAIRN_PYTHON" in finished.err
    assert not (tmp_path / "s").exists()


def test_files_of_torch_and_safetensors_are_not_joined(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    paths = (tmp_path / "in.pt", tmp_path / "b.safetensors")
    finished = run_program("kv-admin", "import", tmp_path / "s", "--step", 1, *paths)
    assert finished.status == 2 and "either" in finished.err


def test_the_handlers_of_the_standard_library_are_those_that_the_reader_expects():
    # The reader is a subclass of a class without a documented interface.
    from cairn._interop.pickles import Reader

    state = {"a": [1, 2.5, None, True, "text", b"bytes", (1, 2, 3, 4)], "b": {"c": 1 << 70}}
    for protocol in (2, 3, 4, 5):
        assert Reader(pickle.dumps(state, protocol)).load() == state
