"""Several ranks merge the records of a step."""

from __future__ import annotations

import pytest
import torch
from ranks import run_on_ranks

import cairn

TENSORS = 400
CHUNKS = 100  # of a tensor: more than two merging ranks need, so that the keys are divided
CHUNK_BYTES = 64


def state_of(rank, changed=0.0):
    shared = torch.arange(TENSORS * CHUNKS * CHUNK_BYTES // 8).reshape(TENSORS, -1).double()
    shared[::7] += changed
    state = {f"w{i}": row for i, row in enumerate(shared.unbind())}
    return {"model": state, f"rank{rank}": torch.full((3,), float(rank))}


def tables(path):
    return len(list((path / "tables").glob("*.sst")))


def save_and_load(rank, path):
    with cairn.open(path, mode="a") as store:
        options = {"chunk_bytes": CHUNK_BYTES, "merging_ranks": 2}
        store.save(1, state_of(rank), **options)
        one = tables(path)
        store.save_async(2, state_of(rank, changed=1.0), **options).result()
        store.save(3, state_of(rank, changed=1.0), **options | {"merging_ranks": 64})
        target = state_of(rank, changed=5.0)
        store.load(target, step=2)
        expected = state_of(rank, changed=1.0)
        assert all(torch.equal(target["model"][k], v) for k, v in expected["model"].items())
        assert torch.equal(target[f"rank{rank}"], expected[f"rank{rank}"])
        return one


def test_steps_of_merging_ranks_are_those_of_rank_0(path):
    # The table of the step, and those of the two ranges.
    assert run_on_ranks(save_and_load, path, world_size=4) == [3] * 4

    with cairn.open(path) as store:
        for step, changed in ((1, 0.0), (2, 1.0), (3, 1.0)):
            loaded = store.read(step=step)
            expected = state_of(0, changed)["model"]
            assert loaded["model"].keys() == expected.keys()
            assert all(torch.equal(loaded["model"][k], v) for k, v in expected.items())
            assert all(torch.equal(loaded[f"rank{r}"], torch.full((3,), r)) for r in range(4))
        assert store.diff(2, 3).changed == ()


def save_small(rank, path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": torch.arange(8), f"r{rank}": torch.ones(2)}, merging_ranks=3)
        return tables(path)


def test_few_chunks_are_merged_by_rank_0_alone(path):
    assert run_on_ranks(save_small, path, world_size=4) == [1] * 4


@pytest.mark.parametrize("count", [0, 65, -1])
def test_impossible_numbers_are_invalid(path, count):
    with cairn.open(path, mode="a") as store:
        with pytest.raises(cairn.Invalid, match="merging_ranks.*must be 1 to 64"):
            store.save(1, {"w": torch.ones(3)}, merging_ranks=count)
        assert store.steps() == []


def test_one_process_ignores_the_number(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": torch.ones(3)}, merging_ranks=8)
        assert store.read()["w"].tolist() == [1.0, 1.0, 1.0]
