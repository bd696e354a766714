"""Four ranks through dcp: failures on one rank, cached plans, saves without communication."""

from __future__ import annotations

import os
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same, wait_until
from dtensors import sharded_state
from ranks import with_ranks
from storages import Storage, failing, failures_of
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def state_of(step: int) -> dict:
    """A sharded tensor, a replicated tensor, a tensor that only this rank has, and values."""
    return {
        **sharded_state(step),
        "same": torch.full((3,), float(step)),
        f"own {dist.get_rank()}": torch.full((2,), float(step)),
    }


def blank_state() -> dict:
    return state_of(-1)


def assert_is_step(state: dict, step: int) -> None:
    assert_same(state, state_of(step))


# Failures -----------------------------------------------------------------------------------------


SAVE_FAILURES = [(0, "create_global_plan")] + [
    (rank, where)
    for where in ("create_local_plan", "finish_plan", "resolve_data")
    for rank in (0, 2)
]


@with_ranks()
def test_what_fails_on_one_rank_is_known_to_all_and_the_next_save_works(
    rank: int, storage: Storage, path
) -> None:
    step = 0
    writer = storage.writer(path)
    for failing_rank, where in SAVE_FAILURES:
        for next_writer in ("same", "new"):
            planner = failing(DefaultSavePlanner, where, failing_rank)()
            error = failures_of(dcp.save, state_of(99), storage_writer=writer, planner=planner)
            assert error == {failing_rank: "KeyError"}, (where, failing_rank, error)
            step += 1
            writer = storage.writer(path) if next_writer == "new" else writer
            dcp.save(state_of(step), storage_writer=writer)
            assert_is_step(storage.load(blank_state(), path), step)

    reader = storage.reader(path)
    for failing_rank in (0, 2):
        for where in ("create_local_plan", "resolve_tensor"):
            planner = failing(DefaultLoadPlanner, where, failing_rank)()
            error = failures_of(dcp.load, blank_state(), storage_reader=reader, planner=planner)
            assert error == {failing_rank: "KeyError"}, (where, failing_rank, error)
            state = blank_state()
            dcp.load(state, storage_reader=reader)
            assert_is_step(state, step)


# Other ways to save -------------------------------------------------------------------------------


@with_ranks()
def test_cached_plans_save_every_step_on_every_rank(rank: int, storage: Storage, path) -> None:
    writer = storage.writer(path / "first")
    for step in range(7):
        state = state_of(step)
        if rank == 1 and step in (3, 4):
            state["more"] = torch.full((5,), float(step))  # the plan of one rank changes, and back
        where = path / ("place" if step % 3 else f"place-{step}")
        planner = DefaultSavePlanner(enable_plan_caching=True)
        if step == 5:  # a new writer continues with the cached plans
            writer = storage.writer(where)
        dcp.save(state, checkpoint_id=where, storage_writer=writer, planner=planner)
        assert_is_step(storage.load(blank_state(), where), step)


@with_ranks()
def test_ranks_save_each_for_itself(rank: int, storage: Storage, path) -> None:
    for step in (1, 2):  # the second replaces the first
        state = {**state_of(step), "rank": rank, "text": f"rank {rank}"}
        metadata = storage.save(state, path, use_collectives=False)
        assert set(metadata.state_dict_metadata) == set(state)
        target = {**blank_state(), "rank": -1, "text": ""}
        storage.load(target, path)
        assert (target.pop("rank"), target.pop("text")) == (rank, f"rank {rank}")
        assert_is_step(target, step)
        dist.barrier()


@with_ranks()
def test_ranks_save_as_if_they_were_alone(rank: int, storage: Storage, path) -> None:
    """no_dist inside a group: each rank saves by itself."""
    state = {"rank": rank, "t": torch.full((3,), float(rank))}
    storage.save(state, path / str(rank), no_dist=True)
    target = storage.load({"rank": -1, "t": torch.zeros(3)}, path / str(rank), no_dist=True)
    assert_same(target, state)
    dist.barrier()
    if rank == 3:
        target = storage.load({"rank": -1}, path / "1", no_dist=True)
        assert target == {"rank": 1}


@with_ranks()
def test_async_saves_on_threads(rank: int, storage: Storage, path) -> None:
    writer = storage.writer(path)
    for step in (1, 2, 3):
        state = state_of(step)
        future = dcp.async_save(state, checkpoint_id=path, storage_writer=writer)
        for value in state.values():  # the copy is staged
            if isinstance(value, torch.Tensor):
                value.fill_(-5)
        metadata = future.result()
        assert "rows" in metadata.state_dict_metadata
        assert_is_step(storage.load(blank_state(), path), step)

    # The exception that is kept keeps the writer of the failed save.
    future = dcp.async_save(
        state_of(4),
        storage_writer=storage.writer(path),
        planner=failing(DefaultSavePlanner, "resolve_data", 2)(),
    )
    with pytest.raises(dcp.CheckpointException) as kept:
        future.result()
    assert list(kept.value.failures) == [2]
    dist.barrier()
    storage.save(state_of(5), path)
    assert_is_step(storage.load(blank_state(), path), 5)
    wait_until(lambda: threading.active_count() < 10)


@with_ranks(2)
def test_async_saves_in_a_process(rank: int, storage: Storage, path) -> None:
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    for step in (1, 2):
        state = {"t": torch.full((4, 4), step + rank * 1.0), "step": step, "rank 0": True}
        state = {f"{key} of {rank}": value for key, value in state.items()} | {"step": step}
        future = dcp.async_save(
            state,
            storage_writer=storage.writer(path),
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        )
        metadata = future.result()
        assert len(metadata.state_dict_metadata) == 3 * 2 + 1
        target = {key: torch.zeros(4, 4) if "t of" in key else None for key in state}
        assert_same(storage.load(target, path), state)
