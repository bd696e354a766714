"""`Store.check`: whether a state in memory equals a step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cairn_testing import segment_files
from dtensors import sharded
from ranks import with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import cairn

PAGE = 65536


def mixed_state():
    large = torch.arange(3_000_000, dtype=torch.float32).view(1000, 3000)
    shared = torch.arange(100_000.0)
    return {
        "large": large,
        "transposed": torch.arange(200_000, dtype=torch.int16).view(400, 500).t(),
        "shared": [shared, shared, shared[50_000:], shared[10:20], shared[::2]],
        "small": [torch.tensor(1.5), torch.empty(0, 3), torch.tensor(True)],
        "array": np.arange(50_000, dtype=">i4"),
        "values": {"text": "x" * 100_000, "nan": float("nan"), "n": 3, "b": b"y", "none": None},
    }


def test_a_state_equals_its_step_without_a_read_of_payload(store):
    state = mixed_state()
    store.save(1, state)
    report = store.check(state)
    assert report.equal and report.step == 1 and report.not_comparable == {}
    assert report.compared_bytes > 12_000_000
    # Of the shared memory, the step has no digests of the strided part, and of ends.
    assert report.bytes_read < 1_000_000
    del state["shared"]
    for path in segment_files(Path(store.address)):
        data = bytearray(path.read_bytes())
        data[4096 : 4096 + 12_000_000 : 1000] = bytes(12_000)
        path.write_bytes(data)
    assert not store.damaged_keys() == {}
    report = store.check(state, keys="!shared")
    assert report.equal and report.bytes_read == 0


def test_a_difference_is_named_with_its_pages(store):
    state = mixed_state()
    store.save(1, state)
    state["large"][500, 7] += 1
    state["large"][999, 2999] += 1
    state["transposed"][499, 399] += 1
    state["shared"][3][0] += 1
    state["small"][0].fill_(2.5)
    state["values"].update(n=4, text="x" * 99_999 + "y")
    report = store.check(state)
    assert not report.equal and report.missing == report.unexpected == ()
    assert set(report.different) == {
        *("large", "transposed", "small.0", "values.n", "values.text"),
        *("shared.0", "shared.1", "shared.3", "shared.4"),
    }
    found, _, place = report.different["large"].partition(", the first at ")
    row, column = json.loads(place)
    assert found == "2 of 184 pages differ"
    assert 0 <= (500 - row) * 3000 + 7 - column < PAGE // 4
    assert report.different["shared.3"] == "1 of 1 pages differ, the first at [0]"
    assert report.different["values.n"] == "4 in memory, 3 in the step"
    store.load(state)
    assert store.check(state).equal


def test_what_cannot_be_compared_is_named(store):
    store.save(1, {name: torch.ones(8) for name in ("a", "b", "c", "d", "e")} | {"v": 1})
    state = {
        "a": torch.ones(8, dtype=torch.bfloat16),
        "b": torch.ones(8, device="meta"),
        "c": torch.ones(2, 4),
        "d": {1, 2},
        "v": torch.ones(1),
        "new": torch.ones(8),
        "newer": {1},
    }
    report = store.check(state)
    assert not report.equal
    assert report.not_comparable["a"] == "bfloat16 in memory, float32 in the step"
    assert "meta tensor" in report.not_comparable["b"] and "set" in report.not_comparable["d"]
    assert report.different == {
        "c": "shape [2, 4] in memory, [8] in the step",
        "v": "a tensor in memory, a value in the step",
    }
    assert report.missing == ("new", "newer") and report.unexpected == ("e",)
    with pytest.raises(cairn.NotFound, match="lacks 'x'"):
        store.check({"x": torch.ones(8)})


def test_deltas_and_compressed_chunks_have_the_digests_of_their_last_version(store):
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(2_000_000, generator=generator).to(torch.bfloat16)
    for step in range(4):
        w[torch.randint(0, len(w), (2000,), generator=generator)] += 1
        store.save(step, {"w": w}, tuning=cairn.SaveTuning(deltas=8))
    store.save(4, {"w": w, "z": torch.zeros(1_000_000)}, tuning=cairn.SaveTuning(compress=True))
    assert store.check({"w": w}, 3).equal
    report = store.check({"w": w, "z": torch.zeros(1_000_000)}, 4)
    assert report.equal and report.bytes_read == 0
    w[1_999_999] += 1
    assert "1 of 62 pages differ" in store.check({"w": w}, 3).different["w"]


def test_a_model_is_checked_with_a_prefix(store):
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(300)).sum().backward()
    optimizer.step()
    store.save(7, {"model": model, "optimizer": optimizer})
    assert store.check({"model": model, "optimizer": optimizer}).equal
    assert store.check(model, 7, prefix="model").equal
    with torch.no_grad():
        model.weight[0, 0] += 1
    assert list(store.check(model, 7, prefix="model").different) == ["model.weight"]
    with pytest.raises(cairn.NotFound, match="prefix='model'"):
        store.check(model)


@with_ranks()
def test_ranks_check_their_parts_together(rank, path):
    world, half = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (2, 2))
    rows = torch.arange(1_000_000.0).view(1000, 1000)
    state = {"rows": sharded(rows, world, (Shard(0),)), "all": torch.ones(40_000), "n": 1}
    state[f"rng.{rank}"] = torch.full((3,), rank)
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
        report = store.check(state)
        assert report.equal and report.bytes_read == 0
        assert report.compared_bytes == rows.nbytes + 4 * (160_000 + 24)
        state["rows"]._local_tensor[-1, -1] += rank == 2
        state["all"][0] += rank == 3
        different = {
            "all": "rank 3: 1 of 3 pages differ, the first at [0]",
            "rows": "rank 2: 1 of 16 pages differ, the first at [745, 760]",
        }
        assert store.check(state).different == different
        # Other meshes: the pages of which a rank has a part are read.
        for placements, few in (((Shard(0), Replicate()), 6 * PAGE), ((Shard(0), Shard(1)), None)):
            other = {"rows": sharded(rows, half, placements)}
            report = store.check(other, keys="rows")
            assert report.equal and (few is None or report.bytes_read < 4 * few)
            other["rows"]._local_tensor[0, 0] += rank == 3
            found = store.check(other, keys="rows").different["rows"]
            column = 500 if few is None else 0
            assert found.startswith("rank 3: ") and found.endswith(f"at [500, {column}]")
        with cairn.open(path, alone=True) as reader:
            own = {"rows": sharded(rows, world, (Shard(0),))}
            assert reader.check(own, keys="rows").equal
            own["rows"]._local_tensor[0, 0] += 1
            assert list(reader.check(own, keys="rows").different) == ["rows"]


def test_a_dry_run_states_all_refusals_and_the_bytes(store):
    state = {"w": torch.ones(1_000_000), "tied": None, "set": {1}, "text": "x" * 10_000}
    state["tied"] = state["w"]
    state["meta"] = torch.ones(3, device="meta")
    report = store.check_state(state)
    assert set(report.refused) == {"set", "meta"} and store.steps() == []
    assert (report.first_bytes, report.next_bytes) == (4_010_000, None)
    assert report.first_seconds == report.first_bytes / report.bytes_per_second
    del state["set"], state["meta"]
    assert store.save(1, state).written_bytes == report.first_bytes
    assert store.check_state(state).next_bytes == 0
    state["w"][0] += 1
    report = store.check_state(state)
    assert report.refused == {} and report.next_bytes == store.save(2, state).written_bytes == PAGE
    with cairn.open(store.address) as reader:
        assert reader.check_state(state).bytes_per_second is None


@with_ranks(2)
def test_ranks_make_a_dry_run_together(rank, path):
    mesh = init_device_mesh("cpu", (2,))
    state = {"rows": sharded(torch.ones(10, 10), mesh, (Shard(0),)), "all": torch.ones(5)}
    state[f"own.{rank}"] = {rank} if rank else 3
    state["loss"] = torch.tensor(float(rank))
    with cairn.open(path, mode="a") as store:
        report = store.check_state(state)
        assert report.first_bytes == 424 and list(report.refused) == ["own.1"]
        assert report.refused["own.1"].startswith("rank 1: ")
        assert report.only_on == {"own.0": (0,), "own.1": (1,)}
        assert report.differing == {"loss": (1,)}
        with pytest.raises(cairn.Invalid, match="rank 0 check, rank 1 check_state"):
            store.check_state(state) if rank else store.check(state)
