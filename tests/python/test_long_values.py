"""Strings, bytes, pickles and integers of more than 4 KiB, whose bytes steps share as chunks."""

import io
import json
import pathlib
import random
import subprocess

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader
from cairn_testing import assert_same, damage
from process_suites import PROGRAMS
from ranks import with_ranks

import cairn

KV_DUMP = PROGRAMS / "kv-dump"


def random_bytes(count, seed=0):
    return random.Random(seed).randbytes(count)


def assert_verified(path):
    assert subprocess.run([KV_DUMP, "verify", path], timeout=1200).returncode == 0


def values():
    return {
        "bytes": random_bytes(1 << 20),
        "text": "größe \ud800" * 1_000,
        "int": -(2**80_000),
        "limits": [b"x" * 4096, b"x" * 4097, "y" * 4096, "y" * 4097],
        "w": torch.arange(3_000),
        "n": numpy.float32(1),
    }


def test_a_step_does_not_write_unchanged_long_values(store, path):
    state = {"v": random_bytes(8 << 20), "w": torch.ones(3)}
    assert store.save(1, state).written_bytes > 8 << 20
    assert store.save(2, {**state, "w": torch.zeros(3)}).written_bytes < 1 << 10
    assert store.save(3, {"v": bytes(state["v"]), "w": torch.zeros(3)}).written_bytes == 0
    changed = bytearray(state["v"])
    changed[5_000_000] ^= 1
    report = store.save(4, {"v": bytes(changed), "w": torch.zeros(3)})
    assert report.written_bytes == 65536
    assert store.save_async(5, state).result().written_bytes > 0
    for step, expected in ((1, state["v"]), (3, state["v"]), (4, changed), (5, state["v"])):
        assert store.read("v", step=step)["v"] == expected
    store.delete(1, 2, 3, 4)
    store.compact(max_dead=0.0)
    assert store.read()["v"] == state["v"]
    assert_verified(path)


@pytest.mark.parametrize("count", [0, 9, 1 << 20])
def test_an_io_bytesio_is_saved_as_bytes_and_loaded_as_io_bytesio(store, path, count):
    data = random_bytes(count)
    stream = io.BytesIO(data)
    stream.seek(count // 2)  # the position is not part of a step
    state = {"a": stream, "list": [io.BytesIO(data)], "tuple": (io.BytesIO(data), 1)}
    store.save(1, state)
    store.save_async(2, state).result()
    assert store.save(3, state).written_bytes == 0  # long values are shared
    with store.writer(4) as writer:
        writer.add("a", stream)
    for step in (1, 2, 3):
        target = {"a": io.BytesIO(b"x"), "list": [io.BytesIO()], "tuple": (io.BytesIO(), 0)}
        store.load(target, step=step)
        for found in (target["a"], target["list"][0], target["tuple"][0]):
            assert type(found) is io.BytesIO and found.getvalue() == data
            assert found.tell() == 0
        assert store.read(step=step) == {"a": data, "list": [data], "tuple": (data, 1)}
    assert store.read(step=4) == {"a": data}
    assert stream.tell() == count // 2
    target = {"a": io.BytesIO()}
    dcp.load(target, storage_reader=CairnReader(path, step=2))
    assert target["a"].getvalue() == data


def test_long_values_of_each_kind_are_loaded(tmp_path):
    state = {**values(), "object": pathlib.PurePosixPath("a" * 5_000)}
    with cairn.open(tmp_path, "a") as store:
        store.save(1, state, allow_pickle=True)
    with cairn.open(tmp_path) as store:
        assert_same(store.read(allow_pickle=True), state)
        target = {**dict.fromkeys(state), "limits": [0] * 4, "w": torch.zeros(3_000).long()}
        store.load(target, allow_pickle=True, strict=False)
        assert target["bytes"] == state["bytes"] and target["object"] == state["object"]
        part = {"text": "", "limits": [0, 1, 2, 3]}
        store.load(part, keys=["text", "limits"])
        assert part == {key: state[key] for key in part}
        with pytest.raises(cairn.errors.Invalid, match="pickle"):
            store.read("object")


def test_the_list_of_keys_has_the_type_and_the_length(store):
    store.save(1, values())
    keys = store.keys()
    assert list(keys) == ["bytes", "text", "int", *(f"limits.{i}" for i in range(4)), "w", "n"]
    info = keys["bytes"]
    assert (info.kind, info.type, info.nbytes, info.value) == ("value", "bytes", 1 << 20, None)
    assert (keys["text"].type, keys["int"].type) == ("str", "int")
    assert (keys["limits.0"].value, keys["limits.1"].value) == (b"x" * 4096, None)


def test_edits_and_merges_keep_long_values(store, path, tmp_path):
    first = values()
    second = {**first, "bytes": random_bytes(1 << 20, 1), "text": first["text"] + "."}
    store.save(1, first)
    store.save(2, second)
    store.edit(1, into=3, rename={"bytes": "other.name"}, drop="text")
    store.edit(3, into=4, graft_from=2, graft="bytes", under="new")
    store.merge([1, 2], into=5)
    store.fork(4, to=tmp_path / "copy")
    assert store.read(step=4)["other"]["name"] == first["bytes"]
    assert_same(store.read(step=5), second)
    assert store.diff(1, 2).changed == ("bytes", "text")
    assert store.diff(1, 2).changes[0].changed_bytes == 1 << 20
    assert store.diff(2, 5).changes == ()
    store.delete(1, 2, 5)
    assert_verified(path)
    with cairn.open(tmp_path / "copy") as store:
        state = store.read()
        assert state["new"]["bytes"] == second["bytes"] and state["other"]["name"] == first["bytes"]
        assert "text" not in state


@with_ranks(3)
def test_the_value_of_the_lowest_rank_is_stored(rank, tmp_path):
    state = {"same": random_bytes(50_000), "differs": random_bytes(60_000 + rank, rank)}
    own = {f"own{rank}": random_bytes(70_000, rank), "some": random_bytes(9_000, max(rank, 1))}
    with cairn.open(tmp_path, "a") as store:
        for step in (1, 2):
            store.save(step, {**state, **(own if rank else {}), "w": torch.ones(3)})
        with store.writer(3) as writer:
            writer.add(f"part{rank}", random_bytes(80_000, rank))
        found = store.read(step=2)
        assert found["same"] == state["same"] and found["differs"] == random_bytes(60_000)
        assert found["own1"] == random_bytes(70_000, 1) and found["own2"] == random_bytes(70_000, 2)
        assert found["some"] == random_bytes(9_000, 1)
        assert store.read(step=3) == {f"part{i}": random_bytes(80_000, i) for i in range(3)}
        assert store.step_info(2).written_bytes == 0


def bytes_written_by_this_process() -> int:
    text = pathlib.Path("/proc/self/io").read_text()
    return int(text.partition("wchar: ")[2].split()[0])


@with_ranks(2)
def test_a_rank_does_not_send_long_values_that_rank_0_has(rank, path):
    same = random_bytes(8 << 20)
    state = {"same": same, "text": "x" * 5_000, f"own{rank}": random_bytes(9_000, rank)}
    with cairn.open(path, "a") as store:
        for step in (1, 2):
            before = bytes_written_by_this_process()
            store.save(step, state) if step == 1 else store.save_async(step, state).result()
            assert rank == 0 or bytes_written_by_this_process() - before < 1 << 20
        del state[f"own{rank}"]
        store.save(3, state)
        assert store.step_info(3).written_bytes == 0
        found = {"same": same, "text": "x" * 5_000}
        assert store.read(step=3) == found
        found |= {f"own{i}": random_bytes(9_000, i) for i in range(2)}
        assert store.read(step=2) == found


def test_damage_is_found_in_values_that_a_call_needs_and_others_are_not_read(tmp_path):
    first = {"same": random_bytes(100_000), "other": random_bytes(50_000, 1), "w": torch.ones(3)}
    second = {**first, "other": b"x" * 50_000}
    with cairn.open(tmp_path, "a") as store:
        store.save(1, first)
        store.save(2, second)
    damage(tmp_path, first["same"][70_000:70_100])
    with cairn.open(tmp_path) as store:
        state = dict(first)
        assert store.pull(state, since=1).changed == ("other",)
        assert state == second
        assert store.read("new", rename={"^other$": "new.name"}) == {"new": {"name": b"x" * 50_000}}
        state = {"new": b"", "w": torch.zeros(3)}
        store.load(state, keys=["new", "w"], rename={"^other$": "new"})
        assert state["new"] == second["other"]
        for rename in (None, {"^other$": "new"}):
            with pytest.raises(cairn.errors.Corrupt) as caught:
                store.read(rename=rename)
            assert caught.value.key == "same"
        assert store.damaged_keys().keys() == {"same"}
        with pytest.warns(RuntimeWarning, match="skipped: "):
            assert store.read(skip_damaged=True).keys() == {"other", "w"}


def test_long_values_are_read_with_progress(store):
    store.save(1, {f"v{i}": random_bytes(12 << 20, i) for i in range(4)})
    seen = []
    store.read(progress=lambda *given: seen.append(given))
    assert {total for _, total in seen} == {48 << 20}
    with pytest.raises(cairn.errors.Unavailable):
        store.read(progress=lambda *_: False)


def test_programs_count_and_show_the_chunks_of_long_values(store, path):
    def dump(*words):
        return json.loads(subprocess.check_output([KV_DUMP, *words, "--json"], timeout=1200))

    for step, size in ((1, 100), (2, 100_000), (3, 100_001), (4, 100)):
        store.save(step, {"m": {"v": random_bytes(size, step), "w": torch.ones(3)}})
    (chunk,) = dump("chunks", f"{path}@2", "m.v")["chunks"]
    assert (chunk["fqn"], chunk["bytes"]) == ("m.v", 100_000)
    (part,) = dump("space", f"{path}@3", "--depth", "1")["space"]
    assert (part["tensors"], part["chunks"], part["logical_bytes"]) == (1, 2, 100_013)
    report = dump("report", path)
    assert report["tensor_count"] == 1
    assert [module["name"] for module in report["modules"]] == ["", "m", "w"]
    assert report["timeline"]["shared"] == [0, 12, 12, 12]
