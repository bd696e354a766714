"""What is not a file or not a store, and bits of deltas: verify finds them, and nothing crashes.
tests/fault/damage_test.cc flips every bit and cuts every file.

The programs must end with one of our exit statuses (run_program checks that no signal ends them).
"""

import contextlib
import os
import random
import shutil

import cairn
import pytest
import torch


@pytest.fixture
def store(two_steps, tmp_path):
    """A copy of the store of two steps."""
    return shutil.copytree(two_steps, tmp_path / "store")


def files_of(store):
    return sorted(p for p in store.rglob("*") if p.is_file())


def flip(path, position, bit):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def test_what_is_not_a_file_is_damage_and_is_not_waited_for(dump, two_steps, tmp_path):
    def replace_by_directory(path):
        path.mkdir()

    names = [file.relative_to(two_steps) for file in files_of(two_steps)]
    newest_root = min(name for name in names if name.parts[0] == "roots")
    for name in names:
        # An earlier root, the hint, or the lease of a writer that has ended, is not needed.
        is_needed = name == newest_root or name.parts[0] not in ("roots", "leases", "hint")
        for replace in (os.mkfifo, replace_by_directory):
            store = tmp_path / "store"
            shutil.copytree(two_steps, store)
            (store / name).unlink()
            replace(store / name)
            verdict = dump("verify", store, "--json")
            assert verdict.status == int(is_needed), (name, replace, verdict.err)
            with contextlib.suppress(cairn.Error), cairn.open(store) as reader:
                for step in (1, 2):
                    with contextlib.suppress(cairn.Error):
                        reader.read(step=step)
            shutil.rmtree(store)


def write_garbage(path):
    for file in files_of(path):
        file.write_bytes(random.Random(str(file)).randbytes(5000))


# What is done to a folder: to the copy of a store, or to an empty one.
HOSTILE = {
    "missing": shutil.rmtree,
    "empty folder": lambda path: None,
    "a file": lambda path: (path.rmdir(), path.write_bytes(b"hello")),
    "folder of other things": lambda path: (path / "notes.txt").write_text("mine"),
    "garbage CAIRN": lambda path: (path / "CAIRN").write_bytes(bytes(range(256)) * 50),
    "CAIRN is a folder": lambda path: (path / "CAIRN").mkdir(),
    "garbage everywhere": write_garbage,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_not_a_store_gets_one_clear_line(dump, admin, two_steps, tmp_path, kind):
    path = tmp_path / "hostile"
    if kind == "garbage everywhere":
        shutil.copytree(two_steps, path)
    else:
        path.mkdir()
    HOSTILE[kind](path)
    for words in ([], ["steps"], ["keys"], ["show", "a"], ["segments"]):
        assert "hostile" in dump(*words[:1], path, *words[1:], status=2).err, words
    assert dump("verify", path).status in (1, 2)
    assert admin("delete", path, 1).status == 2
    assert admin("export", path, tmp_path / "o.safetensors").status == 2
    if kind == "folder of other things":
        assert [p.name for p in path.iterdir()] == ["notes.txt"]


def test_bits_of_deltas_that_do_not_change_the_result_are_found(dump, tmp_path):
    store = tmp_path / "store"
    tensor = torch.arange(1_500, dtype=torch.float32)
    with cairn.open(store, mode="a") as writer:
        writer.save(1, {"w": tensor})
        segments = set(files_of(store))
        tensor[5] += 1
        writer.save(2, {"w": tensor}, tuning=cairn.SaveTuning(deltas=True))
        tensor[-1_000] += 1
        writer.save(3, {"w": tensor}, tuning=cairn.SaveTuning(compress=True))
    new = [path for path in files_of(store) if path not in segments and path.suffix == ".seg"]
    assert len(new) == 2
    for path in new:
        for position in range(4_200, 4_212):  # packed positions, and the header of a zstd frame
            for bit in range(8):
                flip(path, position, bit)
                assert dump("verify", store).status != 0, (path, position, bit)
                flip(path, position, bit)
    assert dump("verify", store).status == 0
