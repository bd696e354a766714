"""Megatron-Core's distributed checkpointing with Cairn's strategies, on ranks with Gloo."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("megatron.core.dist_checkpointing")

import cairn
import interpreters
import ranks
import torch
import torch.distributed as dist

# Each rank would import Megatron by itself, which takes longer than the ranks wait for each other.
interpreters.PRELOAD.append("cairn.trainers.megatron")


def run_on_ranks(function, *args, **options):
    return ranks.run_on_ranks(function, *args, timeout=1200, **options)


def describe(size: int, rank: int):
    """A state of every kind: divided in one or two dimensions, several parts per rank, prepended
    axes, replicas, and objects."""
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    matrix = torch.arange(12 * 12, dtype=torch.float32).reshape(12, 12)
    layers = torch.arange(12 * 6.0).reshape(12, 6)
    offsets = ShardedTensor.from_rank_offsets
    half = 12 // size // 2 if 12 // size >= 2 else 1
    rows = matrix.chunk(size, 0)[rank]
    return {
        "common": {"step": 7},
        "rows": offsets("rows", rows.clone(), (0, rank, size)),
        "columns": offsets("columns", matrix.chunk(size, 1)[rank].contiguous(), (1, rank, size)),
        "halves": [
            offsets("halves", part.clone(), (0, rank * (len(rows) // half) + i, 12 // half))
            for i, part in enumerate(rows.split(half))
        ],
        "layers": [
            offsets("layers", layers[layer].clone(), (0, layer, 12), prepend_axis_num=1)
            for layer in range(rank * 12 // size, (rank + 1) * 12 // size)
        ],
        "same": offsets("same", torch.ones(3, dtype=torch.bfloat16), replica_id=rank),
        "plain": ShardedObject("a.b", {"x": [1, "two", torch.arange(3)]}, (1,), (0,), rank),
        "bytes": ShardedObject("extra", io.BytesIO(b"\x80 bytes"), (1,), (0,), rank),
    }


def values(state):
    if isinstance(state, dict):
        return {key: values(value) for key, value in state.items()}
    if isinstance(state, list):
        return [values(value) for value in state]
    return state.data if hasattr(state, "global_offset") else state


def save_state(rank, folder):
    from cairn.trainers.megatron import CairnSaveStrategy
    from megatron.core import dist_checkpointing

    folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(describe(dist.get_world_size(), rank), str(folder), CairnSaveStrategy())


def blank(state):
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items() if key != "common"}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return state.without_data()


def load_state(rank, folder):
    import cairn.trainers.megatron  # registers the strategy
    from cairn_testing import assert_same
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.serialization import load_sharded_metadata

    wanted = describe(dist.get_world_size(), rank)
    loaded = dist_checkpointing.load(blank(wanted), str(folder))
    assert loaded.pop("bytes").getvalue() == b"\x80 bytes"
    expected = values(wanted)
    del expected["bytes"]
    assert_same(loaded, {key: expected[key] for key in loaded})
    assert loaded.keys() == expected.keys()
    described = load_sharded_metadata(str(folder))
    assert described["columns"].global_shape == (12, 12)
    return sorted(described), cairn.trainers.megatron.BACKEND


@pytest.mark.parametrize("before, after", [(2, 2), (2, 3), (4, 1), (1, 4)])
def test_every_kind_of_state_is_loaded_into_another_sharding(tmp_path, before, after):
    folder = tmp_path / "iter_0000007"
    run_on_ranks(save_state, folder, world_size=before)

    outcome = run_on_ranks(load_state, folder, world_size=after)

    keys = ["a.b/shard_0_1", "columns", "extra/shard_0_1", "halves", "layers", "rows", "same"]
    assert outcome == [(keys, "cairn")] * after
    with cairn.open(tmp_path / "cairn-store") as store:
        assert store.steps() == [7]


def save_object(rank, folder, allow_pickle):
    from cairn.trainers.megatron import CairnLoadStrategy, CairnSaveStrategy
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    def state():
        return {"o": ShardedObject("o", {1, 2}, (2,), (rank,))}

    folder.mkdir(exist_ok=True)
    dist.barrier()
    strategy = CairnSaveStrategy(allow_pickle=allow_pickle)
    try:
        dist_checkpointing.save(state(), str(folder), strategy)
        loaded = dist_checkpointing.load(state(), str(folder), CairnLoadStrategy(allow_pickle=True))
        dist_checkpointing.load(state(), str(folder))
    except cairn.Invalid as error:
        return str(error), allow_pickle and loaded["o"]


def test_objects_of_other_types_need_consent(tmp_path):
    refused = run_on_ranks(save_object, tmp_path / "a", False, world_size=2)
    assert "CairnSaveStrategy" in refused[0][0] and "'o/shard_0_2'" in refused[0][0]
    accepted = run_on_ranks(save_object, tmp_path / "b", True, world_size=2)
    assert accepted[1][1] == {1, 2} and "can run any code" in accepted[1][0]


def save_twice(rank, folder):
    for _ in range(2):
        save_state(rank, folder / "last")
        save_state(rank, folder / "other")


def test_a_directory_that_is_saved_again_keeps_its_step(tmp_path):
    run_on_ranks(save_twice, tmp_path, world_size=2)
    with cairn.open(tmp_path / "cairn-store") as store:
        assert store.steps() == [0, 1]
