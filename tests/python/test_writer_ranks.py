"""`Store.writer` in a multi-rank store."""

from __future__ import annotations

import os
import signal

import pytest
import torch
from cairn_testing import assert_same, stored_files
from dtensors import sharded, whole
from ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

import cairn
from cairn import Invalid, Unavailable

MIB = 1 << 20


def save_shards(rank: int, path: str) -> int:
    mesh = init_device_mesh("cpu", (2, 2))
    with cairn.open(path, mode="a") as store:
        with store.writer(1) as writer:
            for name in ("even", "uneven"):
                writer.add(f"model.{name}", sharded(whole(name), mesh, (Shard(0), Shard(1))))
            writer.add("copies", sharded(whole("deep"), mesh, (Replicate(), Replicate())))
            writer.add(f"rng.{rank}", torch.full((3,), rank))
            writer.add("epoch", 3 + rank)
        return writer.report.written_bytes


def test_ranks_write_their_shards_together(path):
    assert all(own > 0 for own in run_on_ranks(save_shards, str(path)))

    with cairn.open(path) as store:
        state = store.read()
        assert state["epoch"] == 3 and store.step_info(1).ranks == 4
        assert_same(state["model"], {name: whole(name) for name in ("even", "uneven")})
        assert_same(state["copies"], whole("deep"))
        assert_same(state["rng"], {str(rank): torch.full((3,), rank) for rank in range(4)})
    assert not [name for name in stored_files(path) if name.startswith("pending")]


def fail_on_rank_one(rank: int, path: str, how: str) -> str:
    with cairn.open(path, mode="a", timeout=60) as store:
        store.save(1, {"t": torch.ones(100)})
        try:
            with store.writer(2) as writer:
                writer.add(f"t{rank}", torch.rand(MIB))
                if how == "raise" and rank == 1:
                    raise ValueError("no")
                if how == "same tensor":
                    writer.add("both", torch.ones(5))
                if how == "contradiction":
                    writer.add("a" if rank else "a.b", torch.ones(5) * rank)
        except (ValueError, Invalid, Unavailable) as error:
            outcome = f"{type(error).__name__}: {error}"
        else:
            outcome = "committed"
        assert store.steps() == [1]
        with store.writer(2) as writer:  # the ranks continue
            writer.add(f"t{rank}", torch.ones(4))
        torch.distributed.barrier()  # rank 0 deletes the step
        store.delete(2)
        return outcome


@pytest.mark.parametrize(
    ("how", "of_rank_0", "of_rank_1"),
    [
        ("raise", "Unavailable: rank 1: ValueError: no", "ValueError: no"),
        ("same tensor", "Invalid: ", "Invalid: rank 0: "),
        ("contradiction", "Invalid: 'a.b' is below 'a'", "Invalid: rank 0: 'a.b' is below 'a'"),
    ],
)
def test_a_failure_of_one_rank_fails_all(path, how, of_rank_0, of_rank_1):
    outcomes = run_on_ranks(fail_on_rank_one, str(path), how, world_size=2)

    assert outcomes[0].startswith(of_rank_0) and outcomes[1].startswith(of_rank_1), outcomes
    assert how != "same tensor" or "both" in outcomes[0]
    with cairn.open(path, mode="a", grace=0) as store:
        assert store.steps() == [1]
    assert not [name for name in stored_files(path) if name.startswith("pending")]


def differ(rank: int, path: str) -> list[str]:
    outcomes = []
    with cairn.open(path, mode="a", timeout=60) as store:
        for arguments in ({"step": rank}, {"step": 5, "overwrite": bool(rank)}):
            try:
                with store.writer(**arguments) as writer:
                    writer.add(f"t{rank}", 1)
            except Invalid as error:
                outcomes.append(str(error))
        store.save(5, {"a": 1})
    return outcomes


def test_ranks_with_different_arguments_are_refused(path):
    for outcomes in run_on_ranks(differ, str(path), world_size=2):
        assert len(outcomes) == 2 and all("same arguments" in each for each in outcomes)


def die(rank: int, path: str) -> str:
    # Far longer than the test may take: a rank that waited for that long would be noticed.
    with cairn.open(path, mode="a", timeout=3600) as store:
        store.save(1, {"t": torch.ones(4)})
        try:
            with store.writer(2) as writer:
                writer.add(f"t{rank}", torch.rand(2 * MIB))
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
        except Unavailable as error:
            store.abandon()
            return f"unavailable: {error}"
    return "committed"


def test_a_rank_that_is_killed_fails_the_others(path):
    outcomes = run_on_ranks(die, str(path), world_size=3, may_die=(1,))

    assert all(outcomes[rank].startswith("unavailable") for rank in (0, 2)), outcomes
    with cairn.open(path, mode="a") as store:
        assert store.steps() == [1]
        assert len([name for name in stored_files(path) if name.startswith("segments")]) == 1
