"""Damaged and hostile stores: verify finds every flip or nothing readable differs; nothing crashes.

The programs must end with one of our exit statuses (run_program checks that no signal ends them).
"""

import contextlib
import os
import random
import shutil

import cairn
import pytest
import torch
from safetensors.torch import load_file

from tool_programs import assert_equal, small_model, steps_of

SEED = 20240607
FLIPS_PER_FILE = 24
FLIP_SHARES = 4  # tests that divide the flips, so that they can run at the same time


@pytest.fixture
def store(two_steps, tmp_path):
    """A copy of the store of two steps."""
    return shutil.copytree(two_steps, tmp_path / "store")


def files_of(store):
    return sorted(p for p in store.rglob("*") if p.is_file())


def positions(size, generator):
    """Both ends, the middle, and random positions."""
    fixed = {0, 1, size // 2, size - 1, max(0, size - 9)}
    chosen = {generator.randrange(size) for _ in range(FLIPS_PER_FILE)}
    return sorted(fixed | chosen)


def contents(dump, admin, store, folder):
    """Everything that can be read from both steps, or None if a read fails."""
    seen = []
    for step in (100, 200):
        keys = dump("keys", f"{store}@{step}", "--json")
        target = folder / f"out-{step}.safetensors"
        exported = admin("export", f"{store}@{step}", target, "--overwrite")
        if keys.status != 0 or exported.status != 0:
            return None
        seen.append((keys.json()["keys"], load_file(target)))
    return seen


def equal(a, b):
    return all(
        keys_a == keys_b
        and tensors_a.keys() == tensors_b.keys()
        and all(torch.equal(tensors_a[k], tensors_b[k]) for k in tensors_a)
        for (keys_a, tensors_a), (keys_b, tensors_b) in zip(a, b, strict=True)
    )


def flips_of(store):
    """(file, position, bit) of every flip; the same ones for the same SEED."""
    generator = random.Random(SEED)
    for original in files_of(store):
        size = original.stat().st_size
        if size == 0:
            continue
        for position in positions(size, generator):
            yield original.relative_to(store), position, generator.randrange(8)


def flip(path, position, bit):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def bytes_of(store):
    return {path.relative_to(store): path.read_bytes() for path in files_of(store)}


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


@pytest.mark.parametrize("share", range(FLIP_SHARES))
def test_every_flipped_bit_is_found_or_harmless(dump, admin, two_steps, store, tmp_path, share):
    whole = contents(dump, admin, two_steps, tmp_path)
    assert whole is not None
    harmless = []
    for name, position, bit in list(flips_of(two_steps))[share::FLIP_SHARES]:
        flip(store / name, position, bit)
        place = f"{name} byte {position} bit {bit} (seed {SEED})"
        verdict = dump("verify", store, "--json")
        if verdict.status == 0:
            # The flip was not found, so nothing that can be read may differ.
            read = contents(dump, admin, store, tmp_path)
            assert read is not None and equal(read, whole), place
            harmless.append(place)
        else:
            assert verdict.status == 1, (place, verdict.err)
            assert verdict.json()["damage_count"] >= 1, place
        dump(store)
        flip(store / name, position, bit)
    # Only the hint, and roots before the newest one, are harmless: readers need their names.
    newest = min(path.name for path in (two_steps / "roots").iterdir())
    assert not [
        place
        for place in harmless
        if not place.startswith(("roots/", "hint")) or place.startswith(f"roots/{newest}")
    ]
    assert bytes_of(store) == bytes_of(two_steps), "a program that only reads changed the store"


@pytest.mark.parametrize("how", ["empty", "halved", "missing", "one byte short"])
def test_every_cut_file_is_found_or_harmless(dump, admin, two_steps, tmp_path, how):
    store = tmp_path / "store"
    newest, before_newest = sorted((two_steps / "roots").iterdir())[:2]
    whole = contents(dump, admin, two_steps, tmp_path)
    for original in files_of(two_steps):
        name = original.relative_to(two_steps)
        size = original.stat().st_size
        if size == 0 and how != "missing":
            continue
        if original == newest and how == "missing":
            continue  # see test_a_lost_newest_root_is_noticed_by_the_hint
        shutil.copytree(two_steps, store)
        if how == "missing":
            (store / name).unlink()
        else:
            left = {"empty": 0, "halved": size // 2, "one byte short": size - 1}[how]
            with open(store / name, "r+b") as file:
                file.truncate(left)
        verdict = dump("verify", store)
        if verdict.status == 0:
            read = contents(dump, admin, store, tmp_path)
            assert read is not None and equal(read, whole), name
            assert name.parts[0] in ("roots", "hint"), name
        elif verdict.status == 2:
            # Without CAIRN the directory is not a store. A root whose predecessor is missing does
            # not count, and could be a change that is being committed.
            assert name.name == "CAIRN" or how == "missing" and original == before_newest, (
                name,
                verdict.err,
            )
        for words in [(store,), ("keys", store), ("chunks", store), ("segments", store)]:
            finished = dump(*words, "--json")
            # An incomplete list is still one document, with the error as its last member.
            assert finished.out == "" or isinstance(finished.json(), dict), (name, words)
            dump(*words)
        shutil.rmtree(store)


def test_a_lost_newest_root_is_noticed_by_the_hint(dump, admin, store, tmp_path):
    # Only the hint shows that there was a commit: with this root, it is undone as one.
    min((store / "roots").iterdir()).unlink()
    assert "kv-admin rebuild" in dump("keys", store).err
    (store / "hint").unlink()
    assert dump("verify", store).status == 0
    assert steps_of(store) == [100]
    target = tmp_path / "out.safetensors"
    assert admin("export", f"{store}@100", target).status == 0
    assert_equal(load_file(target), small_model())


def test_rebuild_repairs_a_gap_before_the_newest_root(dump, admin, two_steps, store, tmp_path):
    sorted((store / "roots").iterdir())[1].unlink()
    assert "kv-admin rebuild" in dump("keys", store).err
    assert dump("verify", store).status == 1
    assert "2 steps" in admin("rebuild", store, status=0).out
    whole = contents(dump, admin, two_steps, tmp_path)
    assert equal(contents(dump, admin, store, tmp_path), whole)


def test_damage_names_key_segment_and_offset(dump, store):
    row = dump("chunks", f"{store}@100", "model.ids", "--json").json()["chunks"][0]
    flip(store / "segments" / row["segment"], row["offset_bytes"], 0)
    verdict = dump("verify", store, "--json", status=1)
    damage = [d for d in verdict.json()["damage"] if d.get("key") == "model.ids"]
    assert damage and row["segment"] in damage[0]["file"]
    assert damage[0]["offset_bytes"] == row["offset_bytes"]
    assert "model.ids" in dump("verify", store, status=1).out
    assert "model.ids" in dump("show", f"{store}@100", "model.ids", status=2).err
    assert dump("show", f"{store}@100", "model.mask").status == 0


def test_what_cannot_be_read_is_told_from_damage(dump, store):
    segment = next((store / "segments").iterdir())
    segment.unlink()
    segment.symlink_to(segment.name)  # to itself: it cannot be opened, as without permission
    verdict = dump("verify", store, status=1)
    assert "\nunread   " in f"\n{verdict.out}" and "damaged" not in verdict.out
    assert "may be intact" in verdict.out and "repair" not in verdict.out


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
