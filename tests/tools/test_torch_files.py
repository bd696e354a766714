"""kv-admin and torch.save: imports and exports preserve every bit, a hostile file costs nothing but
an error, and no code runs but torch's and Cairn's."""

import io
import os
import pickle
import random
import shutil
import struct
import sys
import zipfile

import pytest
import torch
from cairn_testing import assert_same, random_tensor

import cairn.convert

from tool_programs import into_store, peak_memory
from torch_states import admin, program  # noqa: F401 - fixtures
from torch_states import (
    Runs,
    every_dtype,
    exported,
    imported,
    no_room,
    plain_values,
    read,
    refused,
)


def load(path):
    return torch.load(path, weights_only=True)


def assert_comes_back(admin, folder, state):
    """Asserts that `state` is the same after torch.save, import, export and torch.load, and read
    from the store. Returns what torch has loaded."""
    torch.save(state, folder / "in.pt")
    imported(admin, folder / "s", folder / "in.pt")
    exported(admin, folder / "s", folder / "out.pt")
    loaded = load(folder / "out.pt")
    assert_same(loaded, state)
    assert_same(read(folder / "s"), state)
    return loaded


def exported_state(admin, folder, state):
    """What torch loads from an export of the state."""
    exported(admin, into_store(folder / "s", state), folder / "o.pt")
    return load(folder / "o.pt")


def shapes_strides_and_parameters():
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "transposed": base.permute(2, 0, 1).clone(memory_format=torch.preserve_format),
        "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": torch.ones(1, 3).expand(4, 3),
        "slice": torch.arange(100.0)[10:90:7],
        "parameter": torch.nn.Parameter(base.clone()),
        "frozen": torch.nn.Parameter(base.clone(), requires_grad=False),
    }


def deep():
    state = torch.ones(2)
    for i in range(150):
        state = {"k": [state, i]}
    return state


STATES = {
    "every dtype and value": lambda: {"tensors": every_dtype(), "values": plain_values()},
    "shapes, strides and parameters": shapes_strides_and_parameters,
    "deep": deep,
    "a list": lambda: [torch.ones(2), 3],
    "a tensor": lambda: torch.ones(2),
    "a value": lambda: 7,
    "a tuple": lambda: (1, {"a": torch.ones(1)}),
}


@pytest.mark.parametrize("kind", STATES)
def test_a_state_comes_back(admin, tmp_path, kind):
    state = STATES[kind]()
    assert_comes_back(admin, tmp_path, state)
    imported(admin, tmp_path / "p", tmp_path / "in.pt", "--prefix", "below")
    assert_same(read(tmp_path / "p"), {"below": state})


def test_an_import_converts_nested_states(admin, tmp_path):
    weight = torch.randn(6, 4)
    state = {"model": {"a.w": weight, "a.qk": weight.t()}, "list": [weight[0], {}, 2.5], "n": (3,)}
    torch.save({**state, "types": every_dtype()}, tmp_path / "in.pt")
    rules = [
        {"split": "qk", "into": ["q", "k"], "sizes": [1, 3]},
        {"cast": r"^list\.0", "dtype": "float16"},
        {"rename": r"a\.", "to": "b."},
    ]
    cairn.convert.save_rules(tmp_path / "rules.json", rules)

    imported(admin, tmp_path / "s", tmp_path / "in.pt", "--rules", tmp_path / "rules.json")

    assert_same(read(tmp_path / "s"), {
        "model": {"b.w": weight, "b.q": weight.t()[:1], "b.k": weight.t()[1:]},
        "list": [weight[0].half(), {}, 2.5],
        "n": (3,),
        "types": every_dtype(),
    })  # fmt: skip


def test_dtypes_that_torch_loads_but_does_not_save(admin, tmp_path):
    names = [f"{sign}int{n}" for sign in ("u", "") for n in range(1, 8)]
    names += ["bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"]
    state = {name: torch.arange(12, dtype=torch.uint8).view(getattr(torch, name)) for name in names}
    loaded = exported_state(admin, tmp_path, state)
    assert list(loaded) == names
    for name in names:
        assert loaded[name].dtype == getattr(torch, name)
        assert loaded[name].view(torch.uint8).tolist() == list(range(12))
    imported(admin, tmp_path / "t", tmp_path / "o.pt")
    dtypes = [tensor.dtype for tensor in read(tmp_path / "t").values()]
    assert dtypes == [tensor.dtype for tensor in state.values()]


def test_shared_storage_is_stored_once_and_shared_again(admin, dump, tmp_path):
    weight = torch.randn(64, 32)
    state = {"wte": weight, "head": weight, "t": weight.t(), "row": weight[3]}
    state["alone"] = weight.clone()
    loaded = assert_comes_back(admin, tmp_path, state)
    storages = {key: tensor.untyped_storage().data_ptr() for key, tensor in loaded.items()}
    assert len(set(storages.values())) == 2
    assert storages["wte"] == storages["head"] == storages["t"] == storages["row"]
    loaded["wte"][3, 0] = 77
    assert loaded["row"][0] == 77
    steps = dump("steps", tmp_path / "s", "--json").json()["steps"]
    assert steps[0]["logical_bytes"] == 2 * 64 * 32 * 4


def test_one_storage_seen_as_two_dtypes(admin, tmp_path):
    floats = torch.arange(6.0)
    state = {"floats": floats, "ints": floats.view(torch.int32)[2:]}
    loaded = exported_state(admin, tmp_path, state)
    assert_same(loaded, state)
    loaded["floats"][2] = 0
    assert loaded["ints"][0] == 0


def test_several_shards_with_an_index(program, tmp_path):
    for i in (1, 2):
        torch.save({f"layer.{i}": torch.full((3,), float(i))}, tmp_path / f"part-{i}.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text('{"weight_map": {"layer.1": "part-1.bin", "layer.2": "part-2.bin"}}')
    imported(program, tmp_path / "s", index)
    assert_same(read(tmp_path / "s"), {f"layer.{i}": torch.full((3,), float(i)) for i in (1, 2)})
    index.write_text('{"weight_map": {"layer.1": "part-1.bin", "layer.3": "part-2.bin"}}')
    assert "layer.3" in refused(program, tmp_path / "t", index)


def test_what_cannot_be_exported_is_reported_before_anything_is_written(admin, tmp_path):
    into_store(tmp_path / "s", {"a": torch.ones(2), "long": 1 << 4000})
    (tmp_path / "out").mkdir()
    assert "long" in admin("export", tmp_path / "s", tmp_path / "out" / "o.pt", status=2).err
    assert list((tmp_path / "out").iterdir()) == []
    exported(admin, tmp_path / "s", tmp_path / "out" / "o.pt", "!long")


def test_an_export_that_runs_out_of_room_leaves_no_file(admin, tmp_path):
    into_store(tmp_path / "s", {"a": torch.ones(1 << 20)})
    (tmp_path / "out").mkdir()
    words = "export", tmp_path / "s", tmp_path / "out" / "o.pt"
    assert "cannot write" in admin(*words, status=2, preexec_fn=no_room).err
    assert list((tmp_path / "out").iterdir()) == []


def test_import_and_export_of_more_bytes_than_memory(tmp_path):
    state = {f"w{i}": torch.full((8 << 20,), i, dtype=torch.int32) for i in range(10)}
    torch.save(state, tmp_path / "in.pt")
    assert (tmp_path / "in.pt").stat().st_size > 320 << 20
    assert peak_memory("import", tmp_path / "s", "--step", 1, tmp_path / "in.pt") < 300 << 20
    assert peak_memory("export", tmp_path / "s", tmp_path / "o.pt") < 300 << 20
    assert_same(torch.load(tmp_path / "o.pt", weights_only=True, mmap=True), state)
    shutil.rmtree(tmp_path)  # pytest would keep it


def test_a_pipe_is_refused_and_not_waited_for(program, tmp_path):
    os.mkfifo(tmp_path / "pipe.pt")
    assert "pipe.pt" in refused(program, tmp_path / "s", tmp_path / "pipe.pt")


def test_a_small_file_with_an_endless_tensor_is_refused(admin, tmp_path):
    torch.save({"x": torch.zeros(1).expand(1 << 40)}, tmp_path / "one.pt")
    torch.save({f"x{i}": torch.zeros(1).expand(50 << 20) for i in range(6)}, tmp_path / "six.pt")
    for name in ("one.pt", "six.pt"):
        error = refused(admin, tmp_path / "s", tmp_path / name)
        assert "clone them before torch.save" in error, name
    torch.save({"x": torch.ones(1).expand(1 << 20)}, tmp_path / "small.pt")
    imported(admin, tmp_path / "s", tmp_path / "small.pt")


def test_the_exported_archive_is_aligned_and_its_checksums_hold(admin, tmp_path):
    into_store(tmp_path / "s", {f"w{i}": torch.arange(i) for i in range(20)})
    exported(admin, tmp_path / "s", tmp_path / "o.pt")
    raw = (tmp_path / "o.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "o.pt") as archive:
        assert archive.testzip() is None
        for member in archive.infolist():
            assert member.compress_type == zipfile.ZIP_STORED
            names, extra = struct.unpack_from("<HH", raw, member.header_offset + 26)
            assert (member.header_offset + 30 + names + extra) % 64 == 0
    loaded = torch.load(tmp_path / "o.pt", weights_only=True, mmap=True)
    assert_same(loaded, {f"w{i}": torch.arange(i) for i in range(20)})
    # The same state gives the same file.
    exported(admin, tmp_path / "s", tmp_path / "again.pt")
    assert (tmp_path / "again.pt").read_bytes() == raw


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_that_torch_save_takes(admin, tmp_path, protocol):
    state = {"values": plain_values(), "w": random_tensor(torch.bfloat16, 5, 7)}
    torch.save(state, tmp_path / "in.pt", pickle_protocol=protocol)
    imported(admin, tmp_path / "s", tmp_path / "in.pt")
    assert_same(read(tmp_path / "s"), state)


def test_a_file_without_checksums_is_taken_and_named(admin, tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": torch.ones(3)}, tmp_path / "in.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    finished = imported(admin, tmp_path / "s", tmp_path / "in.pt")
    assert "no checksums" in finished.err and "in.pt" in finished.err
    assert_same(read(tmp_path / "s"), {"a": torch.ones(3)})


class Unknown:
    pass


UNKNOWN = {
    "class": (Unknown(), "Unknown"),
    "set": ({1, 2}, "set"),
    "dtype": (torch.float32, "torch.float32"),
    "sparse": (torch.eye(3).to_sparse(), "_rebuild_sparse_tensor"),
    "conjugated": (torch.ones(2, dtype=torch.complex64).conj(), "conj"),
    "storage": (torch.ones(2).untyped_storage(), "storage"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_cannot_be_kept_is_named_or_left_out(admin, tmp_path, kind):
    value, name = UNKNOWN[kind]
    state = {"good": torch.ones(2), "deep": [5, {"bad": value}, 6]}
    torch.save(state, tmp_path / "in.pt")
    error = refused(admin, tmp_path / "s", tmp_path / "in.pt")
    assert name in error and "deep.1.bad" in error and "in.pt" in error

    finished = imported(admin, tmp_path / "s", tmp_path / "in.pt", "--skip-unknown")
    assert "'deep.1.bad' was left out" in finished.err
    assert_same(read(tmp_path / "s"), {"good": torch.ones(2), "deep": {0: 5, 2: 6}})


def test_pickled_code_is_named_and_never_run(admin, tmp_path):
    ran = tmp_path / "ran"
    torch.save({"w": torch.ones(2), "evil": Runs(ran)}, tmp_path / "in.pt")
    error = refused(admin, tmp_path / "s", tmp_path / "in.pt")
    assert "posix.system" in error and "evil" in error
    imported(admin, tmp_path / "s", tmp_path / "in.pt", "--skip-unknown")
    assert not ran.exists()


def archive(pickled, *members):
    """A zip archive like those of torch.save, with this pickle."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("x/data.pkl", pickled)
        for name, data in members:
            file.writestr(f"x/{name}", data)
    return out.getvalue()


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value


def laughs():
    value = ["ha"]
    for _ in range(30):
        value = [value] * 10
    return value


def endless():
    value = []
    value.append(value)
    return value


def tensor_pickle(offset, size, stride, numel=4, dtype=b"FloatStorage", key=b"0"):
    def number(value):
        return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)

    def numbers(values):
        return b"(" + b"".join(map(number, values)) + b"t"

    return (
        b"\x80\x02}" + text(b"w") + b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + text(b"storage") + b"ctorch\n" + dtype + b"\n" + text(key) + text(b"cpu")
        + number(numel) + b"tQ" + number(offset) + numbers(size) + numbers(stride) + b"\x89NtRs."
    )


def overlapping():
    """Two members that are the same bytes."""
    data = archive(b"\x80\x02}.", ("data/0", bytes(64)), ("data/1", bytes(64)))
    begin, end = data.find(b"PK\x01\x02"), data.find(b"PK\x05\x06")
    first, second = (data.find(b"x/data/%d" % i, begin) for i in (0, 1))
    offset = data[first - 4 : first]  # of the local header, in the record of the directory
    return data[: second - 4] + offset + data[second:end] + data[end:]


def repeated(operations, count=100_000):
    """A pickle that makes a text of 1 MB and then repeats operations on it."""
    return b"\x80\x04]" + text(b"a" * 1_000_000) + b"\x940(" + operations * count + b"e."


CALL = b"\x80\x02c__builtin__\n%s\n("
FOUR_FLOATS = ("data/0", bytes(16))
HOSTILE = {
    "no pickle": archive(b"nonsense"),
    "no data.pkl": archive(b"").replace(b"data.pkl", b"data.pkx"),
    "billion laughs": archive(pickle.dumps(laughs())),
    "list of itself": archive(pickle.dumps(endless())),
    "deep": archive(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
    "deep parameters": archive(
        b"\x80\x02" + b"ctorch._utils\n_rebuild_parameter\n" * 9999 + b"N" + b"\x89N\x87R" * 9999
        + b"."
    ),
    "memo number": archive(b"\x80\x02Nr\xff\xff\xff\xff."),
    "unset memo": archive(b"\x80\x02h\x05."),
    "left over": archive(b"\x80\x02NN."),
    "long text": archive(b"\x80\x02X\xff\xff\xff\xffabc."),
    "long text 8": archive(b"\x80\x04\x8d" + b"\xff" * 8 + b"abc."),
    "extension": archive(b"\x80\x02\x82\x01."),
    "item in a number": archive(b"\x80\x02K\x01NNs."),
    "state of a number": archive(b"\x80\x02K\x01Nb."),
    "beyond the storage": archive(tensor_pickle(0, [5], [1]), FOUR_FLOATS),
    "negative offset": archive(tensor_pickle(-1, [1], [1]), FOUR_FLOATS),
    "negative stride": archive(tensor_pickle(3, [2], [-1]), FOUR_FLOATS),
    "huge shape": archive(tensor_pickle(0, [2**62, 2**62], [0, 0]), FOUR_FLOATS),
    "huge stride": archive(tensor_pickle(1, [3, 3], [2**62, 2**62]), FOUR_FLOATS),
    "stride short": archive(tensor_pickle(0, [2, 2], [1]), FOUR_FLOATS),
    "storage length": archive(tensor_pickle(0, [1], [1], numel=5), FOUR_FLOATS),
    "storage missing": archive(tensor_pickle(0, [1], [1], key=b"1"), FOUR_FLOATS),
    "storage class": archive(tensor_pickle(0, [1], [1], dtype=b"QInt8Storage"), FOUR_FLOATS),
    "big-endian": archive(b"\x80\x02}.", ("byteorder", b"big")),
    "version": archive(b"\x80\x02}.", ("version", b"99\n")),
    "TorchScript": archive(b"\x80\x02}.", ("constants.pkl", b"\x80\x02).")),
    "only the magic": b"PK\x03\x04",
    "bytearray of a TiB": archive(CALL % b"bytearray" + b"\x8a\x06" + bytes(5) + b"\x01tR."),
    "bytes of a TiB": archive(CALL % b"bytes" + b"\x8a\x06" + bytes(5) + b"\x01tR."),
    "eval": archive(CALL % b"eval" + text(b"open('/nowhere')") + b"tR."),
    "key that is nested": archive(b"\x80\x02}" + b")" + b"\x85" * 500_000 + b"Ns."),
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
def test_hostile_files_are_refused_and_leave_no_store(admin, tmp_path, kind):
    (tmp_path / "bad.pt").write_bytes(HOSTILE[kind])
    assert "bad.pt" in refused(admin, tmp_path / "s", tmp_path / "bad.pt")


def test_the_directory_of_an_archive_is_not_read_whatever_its_size(admin, tmp_path):
    """An end record that states a directory of nearly 4 GiB, in a file of that size."""
    size = 0xFFFFF000
    with open(tmp_path / "bad.pt", "wb") as file:
        file.write(b"PK\x03\x04")
        file.seek(size)
        file.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, size - 4, 4, 0))
    assert "directory" in refused(admin, tmp_path / "s", tmp_path / "bad.pt")


def test_a_sound_archive_of_the_same_make_is_taken(admin, tmp_path):
    (tmp_path / "good.pt").write_bytes(archive(tensor_pickle(1, [3], [1]), FOUR_FLOATS))
    imported(admin, tmp_path / "s", tmp_path / "good.pt")
    assert_same(read(tmp_path / "s"), {"w": torch.zeros(3)})


def test_the_format_before_torch_1_6_is_refused_by_name(admin, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    error = refused(admin, tmp_path / "s", tmp_path / "old.pt")
    assert "1.6" in error and "old.pt" in error


def test_a_compressed_archive_is_refused(admin, tmp_path):
    with zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", b"\x80\x02}." * 50)
    assert "compressed" in refused(admin, tmp_path / "s", tmp_path / "z.pt")


def small_file(path):
    state = {"a": torch.arange(6, dtype=torch.int16), "b": [1.5, "text"], "c": torch.ones(2, 2)}
    torch.save(state, path)
    return state


def test_every_cut_is_noticed(admin, tmp_path):
    small_file(tmp_path / "in.pt")
    whole = (tmp_path / "in.pt").read_bytes()
    for length in sorted(random.Random(3).sample(range(len(whole)), 60)):
        (tmp_path / "cut.pt").write_bytes(whole[:length])
        refused(admin, tmp_path / "s", tmp_path / "cut.pt")


def test_no_flipped_byte_is_taken_for_data(admin, tmp_path):
    state = small_file(tmp_path / "in.pt")
    whole = (tmp_path / "in.pt").read_bytes()
    refused = 0
    for i, at in enumerate(sorted(random.Random(4).sample(range(len(whole)), 150))):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        (tmp_path / "flip.pt").write_bytes(damaged)
        finished = admin("import", tmp_path / f"s{i}", "--step", 1, tmp_path / "flip.pt")
        refused += finished.status == 2
        # A flip that is not detected (padding, times) does not change the result.
        if finished.status == 0:
            assert_same(read(tmp_path / f"s{i}"), state), at
    assert refused > 40


def test_code_in_the_current_directory_is_not_run(program, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    for module in ("torch", "cairn", "argparse", "site"):
        (tmp_path / f"{module}.py").write_text("open('ran', 'w')")
    program("import", "s", "--step", 1, "in.pt", cwd=tmp_path, status=0)
    assert not (tmp_path / "ran").exists()


def test_a_python_without_torch_is_one_error(program, tmp_path, monkeypatch):
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    for chosen, why in ((python, "No module named 'torch'"), ("/nowhere", "cannot be started")):
        monkeypatch.setenv("CAIRN_PYTHON", str(chosen))
        error = refused(program, tmp_path / "s", tmp_path / "in.pt")
        assert why in error and "CAIRN_PYTHON" in error


def test_files_of_torch_and_safetensors_are_not_joined(program, tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "in.pt")
    (tmp_path / "b.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    words = "import", tmp_path / "s", "--step", 1, tmp_path / "in.pt", tmp_path / "b.safetensors"
    assert "either" in program(*words, status=2).err
