"""`cairn.torch.Saver` on several ranks: all agree on the signal and the step."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn
from cairn.torch import Saver


def state_of(step: int, mesh) -> dict:
    whole = torch.arange(12.0).reshape(6, 2) + step
    return {"d": distribute_tensor(whole, mesh, [Shard(0)]), "step": step}


def mesh_of(world_size: int):
    return init_device_mesh("cpu", (world_size,))


def train(rank, path, signalled, every, agree_every, steps):
    """Saves `steps` steps, with a signal to rank `signalled` at step 7."""
    mesh = mesh_of(dist.get_world_size())
    code = None
    try:
        with cairn.open(path, mode="a", timeout=30) as store:
            with Saver(store, every=every, agree_every=agree_every, keep_last=2) as saver:
                for step in range(1, steps + 1):
                    if rank == signalled and step == 7:
                        os.kill(os.getpid(), signal.SIGTERM)
                    saver.step(step, lambda: state_of(step, mesh))
    except SystemExit as end:
        code = end.code
    return code, saver.preempted, saver.last_step, saver.agreement_seconds > 0


@pytest.mark.parametrize("signalled", [0, 1, 3])
def test_a_signal_to_one_rank_makes_all_save_the_same_step_and_end(path, signalled):
    outcome = run_on_ranks(train, path, signalled, 100, 1, 20)
    assert outcome == [(143, True, 7, True)] * 4
    with cairn.open(path) as store:
        assert store.steps() == [7]
        assert torch.equal(store.read()["d"], torch.arange(12.0).reshape(6, 2) + 7)


def test_ranks_may_ask_each_other_less_often(path):
    outcome = run_on_ranks(train, path, 1, 100, 4, 20, world_size=2)
    assert outcome == [(143, True, 8, True)] * 2


def test_saves_behind_the_training_are_kept_and_deleted_alike(path):
    outcome = run_on_ranks(train, path, None, 3, 1, 20)
    assert outcome == [(None, False, 18, True)] * 4
    with cairn.open(path) as store:
        assert store.steps() == [15, 18]


def step_apart(rank, path):
    with cairn.open(path, mode="a", timeout=30) as store, Saver(store, every=100) as saver:
        try:
            saver.step(1 + rank, {})
        except cairn.Invalid as error:
            return str(error)


def test_ranks_at_different_steps_are_told(path):
    outcome = run_on_ranks(step_apart, path, world_size=2)
    assert all("other ranks are at steps 1 to 2" in text for text in outcome)


def fail_on_one(rank, path):
    def state() -> dict:
        return {"t": threading_lock() if rank == 1 else torch.zeros(1)}

    outcome = []
    with cairn.open(path, mode="a", timeout=30) as store, Saver(store, every=1) as saver:
        for _ in range(2):
            try:
                saver.step(1, state)
            except cairn.Error as error:
                outcome.append(type(error).__name__)
        saver.step(2, {"t": torch.zeros(1)})
    return outcome


def threading_lock():
    import threading

    return threading.Lock()


def test_a_state_that_cannot_be_saved_on_one_rank_fails_on_all(path):
    assert run_on_ranks(fail_on_one, path, world_size=2) == [["Invalid", "Invalid"]] * 2
    with cairn.open(path) as store:
        assert store.steps() == [2]


def without_signals(rank, path):
    with cairn.open(path, mode="a", timeout=30) as store:
        with Saver(store, every=2, signals=(), keep_last=1) as saver:
            for step in range(1, 8):
                saver.step(step, {"step": step})
            return saver.agreement_seconds


def test_without_signals_ranks_do_not_ask(path):
    assert run_on_ranks(without_signals, path, world_size=2) == [0.0, 0.0]
    with cairn.open(path) as store:
        assert store.steps() == [6]


def lose_a_rank(rank, path):
    store = cairn.open(path, mode="a", timeout=30)
    saver = Saver(store, every=100)
    saver.step(1, {})
    if rank == 1:
        os._exit(1)
    with pytest.raises(cairn.Unavailable) as raised:
        saver.step(2, {})
    outcome = str(raised.value)
    saver.close()
    store.abandon()
    return outcome


def test_a_rank_that_dies_is_told_by_the_others(path):
    outcome, _ = run_on_ranks(lose_a_rank, path, world_size=2, may_die=(1,))
    assert outcome.startswith("step 2: a rank has died")


def fail_while_training(rank, path):
    # Far longer than the test may take: a rank that waited for the other would be seen.
    with pytest.raises((cairn.Unavailable, ZeroDivisionError)) as raised:
        with cairn.open(path, mode="a", timeout=600) as store:
            store.save(1, {"step": 1})
            with Saver(store, every=3, keep_last=1) as saver:
                saver.step(3, {"step": 3})
                if rank == 1:
                    raise ZeroDivisionError
                saver.step(4, {})
    return raised.type.__name__


def test_a_rank_that_fails_waits_for_its_save_but_not_for_the_others(path):
    assert run_on_ranks(fail_while_training, path, world_size=2) == [
        "Unavailable",
        "ZeroDivisionError",
    ]
    with cairn.open(path) as store:
        assert 3 in store.steps()


def with_a_group(rank, path):
    group = dist.new_group([0, 1])
    if rank == 2:
        return None
    with cairn.open(path, mode="a", process_group=group, timeout=30) as store:
        with pytest.raises(cairn.Invalid, match="open on 2 ranks, and the process group has 3"):
            Saver(store, every=1)
        with Saver(store, every=3, process_group=group) as saver:
            for step in range(1, 5):
                saver.step(step, {"step": step})
            return saver.last_step, saver.agreement_seconds > 0


def test_ranks_of_a_group_save_without_the_others(path):
    assert run_on_ranks(with_a_group, path, world_size=3) == [(None, True), (None, True), None]
    with cairn.open(path) as store:
        assert store.steps() == [3]
