"""`cairn.torch.Saver`: when it saves, what it keeps, its errors; and how ranks agree."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from cairn_testing import assert_same, state_of, steps_of
from dtensors import sharded_state, whole
from ranks import run_on_ranks, with_ranks

import cairn
from cairn.torch import Saver


@pytest.fixture(autouse=True)
def same_handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    assert {number: signal.getsignal(number) for number in before} == before


@pytest.mark.parametrize("async_", [True, False], ids=["async", "sync"])
def test_steps_are_saved_when_they_are_due(store, async_):
    made = []

    def step_and_state(step: int) -> bool:
        return saver.step(step, lambda: made.append(step) or state_of(step))

    with Saver(store, every=5, async_=async_) as saver:
        results = [step for step in range(1, 18) if step_and_state(step)]
    assert results == made == store.steps() == [5, 10, 15]
    assert saver.last_step == 15
    assert_same(store.read(step=10), state_of(10))


@pytest.mark.parametrize("base", [0, "imported"])
def test_the_base_of_a_run_is_neither_resumed_from_nor_deleted(store, base):
    store.save(0, {"weights": torch.ones(4)}, tags=["imported"] if base else [])
    state = state_of(0)
    with Saver(store, every=1, keep_last=1, base=base) as saver:
        assert saver.resume(state) is None and state["step"] == 0
        for step in (1, 2, 3):
            saver.step(step, state_of(step))
    assert store.steps() == [0, 3]
    with Saver(store, every=1, keep_last=1, base=base) as saver:
        assert saver.resume(state) == 3


def test_an_unknown_base_is_refused_and_one_that_was_not_given_is_suggested(store):
    store.save(7, {"weights": torch.ones(4)})
    with pytest.raises(cairn.NotFound, match="imported"):
        Saver(store, every=1, base="imported")
    with Saver(store, every=1) as saver, pytest.raises(cairn.NotFound) as refused:
        saver.resume(state_of(0))
    assert "base=7 to the Saver" in refused.value.__notes__[0]


def test_resume_fills_the_state_from_the_latest_step(store):
    with Saver(store, every=1) as saver:
        state = state_of(0)
        assert saver.resume(state) is None and state["step"] == 0
        for step in (1, 2, 3):
            saver.step(step, state_of(step))
    with Saver(store, every=1) as saver:
        weight = state["t"]
        assert saver.resume(state) == saver.last_step == 3
        assert_same(state, state_of(3))
        assert state["t"] is weight
        assert saver.resume(state, step=2) == 2 and state["step"] == 2
        with pytest.raises(cairn.NotFound):
            saver.resume({"other": 1})
        assert saver.resume({"step": 0}, strict=False) == 3


@pytest.mark.parametrize(
    "keep_last, keep_every, kept",
    [
        (0, 0, [2, 4, 6, 8, 10, 12]),
        (1, 0, [12]),
        (3, 0, [8, 10, 12]),
        (2, 4, [4, 8, 10, 12]),
        (0, 5, [10, 12]),
        (9, 0, [2, 4, 6, 8, 10, 12]),
    ],
)
def test_old_steps_are_deleted(store, keep_last, keep_every, kept):
    with Saver(store, every=2, keep_last=keep_last, keep_every=keep_every) as saver:
        for step in range(1, 14):
            saver.step(step, state_of(step))
            assert saver.last_step is None or saver.last_step in store.steps()
    assert store.steps() == kept
    for step in kept:
        assert_same(store.read(step=step), state_of(step))


def test_nothing_is_deleted_before_a_newer_step_is_durable(store, monkeypatch):
    with Saver(store, every=1, keep_last=1) as saver:
        saver.step(1, state_of(1))
        saver.step(2, state_of(2))
        saver._finish_background_save()
        assert store.steps() == [2]
        # Step 3 cannot be written; its save is reported as failed, and step 2 remains.
        monkeypatch.setattr(type(saver._store), "save_async", failing_save)
        saver.step(3, state_of(3))
        with pytest.raises(cairn.Unavailable, match="disk"):
            saver.step(4, state_of(4))
        assert store.steps() == [2]


def failing_save(*unused: object, **options: object) -> SimpleNamespace:
    """A handle of a save that has failed."""

    def result() -> None:
        raise cairn.Unavailable("the disk is full")

    return SimpleNamespace(done=lambda: True, make_streams_wait=lambda: None, result=result)


def test_an_error_behind_the_training_is_raised_once_by_the_next_step(store, monkeypatch):
    with Saver(store, every=10) as saver:
        with monkeypatch.context() as patched:
            patched.setattr(type(store), "save_async", failing_save)
            assert saver.step(10, state_of(10))
        with pytest.raises(cairn.Unavailable, match="disk is full"):
            saver.step(11, state_of(11))
        assert not saver.step(12, state_of(12))
        assert saver.step(20, state_of(20))
    assert store.steps() == [20]


def test_an_error_behind_the_training_is_raised_by_close(store, monkeypatch):
    saver = Saver(store, every=1)
    monkeypatch.setattr(type(store), "save_async", failing_save)
    saver.step(1, state_of(1))
    with pytest.raises(cairn.Unavailable, match="disk is full"):
        saver.close()
    saver.close()


def test_an_error_of_the_training_goes_before_those_of_the_saver(store, monkeypatch):
    monkeypatch.setattr(type(store), "save_async", failing_save)
    with pytest.warns(RuntimeWarning, match="disk is full"), pytest.raises(ZeroDivisionError):
        with Saver(store, every=1) as saver:
            saver.step(1, state_of(1))
            raise ZeroDivisionError


def test_a_step_that_exists_is_a_conflict_unless_it_may_be_replaced(store):
    store.save(2, {"v": "old"})
    store.save(9, {"v": "later"})
    with Saver(store, every=2) as saver:
        with pytest.raises(cairn.Conflict):
            saver.step(2, {"v": "new"})
    with Saver(store, every=2, overwrite=True, keep_last=1) as saver:
        saver.step(2, {"v": "new"})
        saver.step(4, {"v": "newer"})
    # Step 9 is of a run that was given up, and not this Saver's to delete.
    assert store.steps() == [4, 9]


def test_save_saves_now_and_once(store):
    with Saver(store, every=5) as saver:
        saver.step(5, state_of(5))
        saver.save(5, state_of(5))
        saver.save(7, lambda: state_of(7))
        assert store.steps() == [5, 7] and saver.last_step == 7


def test_save_adds_to_a_step_that_was_just_saved(store):
    with Saver(store, every=5, keep_last=1) as saver:
        saver.step(5, state_of(5), metrics={"loss": 0.5})
        saver.save(5, state_of(5), tags=["final"], note="the end")
    info = store.step_info("final")
    assert (info.step, info.metrics, info.note) == (5, {"loss": 0.5}, "the end")
    with Saver(store, every=5) as saver:
        saver.resume(state_of(0))
        saver.save(5, state_of(6), tags=["again"])  # the training was over
    assert list(store.tags()) == ["final"]
    with Saver(store, every=5, overwrite=True) as saver:
        saver.resume(state_of(0))
        saver.save(5, state_of(6), tags=["again"])
    assert_same(store.read(step="again"), state_of(6))


def test_bad_numbers_and_a_closed_saver_are_refused(store):
    for options in ({"every": 0}, {"every": 1, "keep_last": -1}, {"every": 1, "agree_every": 0}):
        with pytest.raises(cairn.Invalid, match=list(options)[-1]):
            Saver(store, **options)
    with pytest.raises(cairn.Invalid, match="SIGKILL|9"):
        Saver(store, every=1, signals=[signal.SIGUSR1, signal.SIGKILL])
    saver = Saver(store, every=5)
    with pytest.raises(cairn.Invalid, match="step=-1"):
        saver.step(-1, {})
    saver.close()
    with pytest.raises(cairn.Invalid, match="closed"):
        saver.step(1, {})


def test_only_the_main_thread_can_watch_signals(store):
    def work() -> None:
        with pytest.raises(cairn.Invalid, match="main thread"):
            Saver(store, every=1)
        with Saver(store, every=1, signals=()) as saver:
            saver.step(1, {"v": 1})

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
    assert store.steps() == [1]


@pytest.mark.parametrize("async_", [True, False], ids=["async", "sync"])
def test_a_signal_saves_the_next_step_and_ends_the_process_as_told(store, async_):
    with pytest.raises(SystemExit) as end:
        with Saver(store, every=100, async_=async_) as saver:
            for step in range(1, 50):
                if step == 7:
                    os.kill(os.getpid(), signal.SIGTERM)
                    os.kill(os.getpid(), signal.SIGTERM)
                assert saver.pending_signal == (signal.SIGTERM if step == 7 else 0)
                saver.step(step, lambda: state_of(step))
    assert end.value.code == 143 and saver.preempted and saver.pending_signal == 0
    assert store.steps() == [7]
    assert_same(store.read(), state_of(7))


def test_a_handler_of_the_user_is_called_after_the_save_and_decides(store):
    seen = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(store.steps()))
    try:
        with Saver(store, every=100, signals=[signal.SIGUSR1]) as saver:
            for step in range(1, 10):
                if step in (3, 6):
                    os.kill(os.getpid(), signal.SIGUSR1)
                saver.step(step, state_of(step))
                assert saver.preempted == (step >= 3)
        assert seen == [[3], [3, 6]] and store.steps() == [3, 6]
        os.kill(os.getpid(), signal.SIGUSR1)
        assert len(seen) == 3, "the handler is restored"
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_an_ignored_signal_saves_and_the_training_goes_on(store):
    previous = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Saver(store, every=100) as saver:
            os.kill(os.getpid(), signal.SIGTERM)
            for step in (1, 2):
                saver.step(step, state_of(step))
        assert store.steps() == [1] and saver.preempted
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_a_signal_after_the_last_step_takes_its_course_at_close(store):
    with pytest.raises(SystemExit) as end:
        with Saver(store, every=1) as saver:
            saver.step(1, state_of(1))
            os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 143 and store.steps() == [1]


def test_a_signal_does_not_hide_an_error_of_the_training(store):
    with pytest.warns(RuntimeWarning, match="SIGTERM arrived"), pytest.raises(ZeroDivisionError):
        with Saver(store, every=1):
            os.kill(os.getpid(), signal.SIGTERM)
            raise ZeroDivisionError


def test_a_preempted_step_is_saved_though_an_earlier_save_has_failed(store, monkeypatch):
    monkeypatch.setattr(type(store), "save_async", failing_save)
    with pytest.warns(RuntimeWarning, match="earlier save failed: the disk"):
        with pytest.raises(SystemExit), Saver(store, every=5) as saver:
            saver.step(5, state_of(5))
            os.kill(os.getpid(), signal.SIGTERM)
            saver.step(6, state_of(6))
    assert store.steps() == [6]


def test_a_signal_while_a_save_runs_makes_both_steps_durable(store):
    large = {"t": torch.zeros(1).expand(1 << 28)}
    with pytest.raises(SystemExit), Saver(store, every=5) as saver:
        saver.step(5, large)
        os.kill(os.getpid(), signal.SIGTERM)
        saver.step(6, state_of(6))
    assert store.steps() == [5, 6]
    assert_same(store.read(step=6), state_of(6))


def test_a_handler_set_later_by_someone_else_is_left_alone(store):
    previous = signal.getsignal(signal.SIGTERM)
    saver = Saver(store, every=1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    saver.close()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    signal.signal(signal.SIGTERM, previous)


def test_a_forked_child_dies_of_the_signal_as_before(store):
    with Saver(store, every=1):
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def train(rank, path, signalled, every, agree_every, steps):
    """Saves `steps` steps, with a signal to rank `signalled` at step 7."""
    code = None
    try:
        with cairn.open(path, mode="a", timeout=600) as store:
            with Saver(store, every=every, agree_every=agree_every, keep_last=2) as saver:
                for step in range(1, steps + 1):
                    if rank == signalled and step == 7:
                        os.kill(os.getpid(), signal.SIGTERM)
                    saver.step(step, lambda: sharded_state(step))
    except SystemExit as end:
        code = end.code
    return code, saver.preempted, saver.last_step, saver.agreement_seconds > 0


@pytest.mark.parametrize("signalled", [0, 1, 3])
def test_a_signal_to_one_rank_makes_all_save_the_same_step_and_end(path, signalled):
    outcome = run_on_ranks(train, path, signalled, 100, 1, 20)
    assert outcome == [(143, True, 7, True)] * 4
    with cairn.open(path) as store:
        assert store.steps() == [7]
        assert torch.equal(store.read()["rows"], whole("uneven", 7))


def test_ranks_may_ask_each_other_less_often(path):
    outcome = run_on_ranks(train, path, 1, 100, 4, 20, world_size=2)
    assert outcome == [(143, True, 8, True)] * 2


def test_saves_behind_the_training_are_kept_and_deleted_alike(path):
    outcome = run_on_ranks(train, path, None, 3, 1, 20)
    assert outcome == [(None, False, 18, True)] * 4
    assert steps_of(path) == [15, 18]


@with_ranks(2)
def test_ranks_at_different_steps_are_told(rank, path):
    with cairn.open(path, mode="a", timeout=600) as store, Saver(store, every=100) as saver:
        with pytest.raises(cairn.Invalid, match="other ranks are at steps 1 to 2"):
            saver.step(1 + rank, {})


@with_ranks(2)
def test_a_state_that_cannot_be_saved_on_one_rank_fails_on_all(rank, path):
    def state() -> dict:
        return {"t": threading.Lock() if rank == 1 else torch.zeros(1)}

    with cairn.open(path, mode="a", timeout=600) as store, Saver(store, every=1) as saver:
        for _ in range(2):
            with pytest.raises(cairn.Invalid):
                saver.step(1, state)
        saver.step(2, {"t": torch.zeros(1)})
    assert steps_of(path) == [2]


@with_ranks(2)
def test_without_signals_ranks_do_not_ask(rank, path):
    with cairn.open(path, mode="a", timeout=600) as store:
        with Saver(store, every=2, signals=(), keep_last=1) as saver:
            for step in range(1, 8):
                saver.step(step, {"step": step})
            assert saver.agreement_seconds == 0
    assert steps_of(path) == [6]


@with_ranks(2, may_die=(1,))
def test_a_rank_that_dies_is_told_by_the_others(rank, path):
    store = cairn.open(path, mode="a", timeout=600)
    saver = Saver(store, every=100)
    saver.step(1, {})
    if rank == 1:
        os._exit(1)
    with pytest.raises(cairn.Unavailable, match="^step 2: a rank has died"):
        saver.step(2, {})
    saver.close()
    store.abandon()


@with_ranks(2)
def test_a_rank_that_fails_waits_for_its_save_but_not_for_the_others(rank, path):
    # Far longer than the test may take: a rank that waited for the other would be seen.
    with pytest.raises(ZeroDivisionError if rank else cairn.Unavailable):
        with cairn.open(path, mode="a", timeout=600) as store:
            store.save(1, {"step": 1})
            with Saver(store, every=3, keep_last=1) as saver:
                saver.step(3, {"step": 3})
                if rank == 1:
                    raise ZeroDivisionError
                saver.step(4, {})
    assert 3 in steps_of(path)


@with_ranks(3)
def test_ranks_of_a_group_save_without_the_others(rank, path):
    group = dist.new_group([0, 1])
    if rank == 2:
        return
    with cairn.open(path, mode="a", process_group=group, timeout=600) as store:
        with Saver(store, every=3) as saver:
            for step in range(1, 5):
                saver.step(step, {"step": step})
            assert saver.last_step is None and saver.agreement_seconds > 0
    assert steps_of(path) == [3]
