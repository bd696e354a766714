"""Mirrors of a store in one process: copies after saves, pruning, errors, tiers, and resumption."""

from __future__ import annotations

import os
import shutil
import signal
import threading

import pytest
import torch
from cairn_testing import assert_same, run_python, wait_until

import cairn
from cairn import Mirror
from cairn._mirror.options import mirror_chain
from cairn._mirror.worker import MirrorWorker
from cairn.errors import Unavailable
from cairn.torch import Saver

NOWHERE = "s3://bucket/store?endpoint=http://127.0.0.1:9"  # nobody listens there


def state_of(step: int) -> dict:
    return {"t": torch.full((1000,), float(step)), "step": step}


def steps_of(address) -> list[int]:
    with cairn.open(address) as store:
        return store.steps()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "mirror"


@pytest.fixture
def unreachable(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("CAIRN_S3_TIMEOUT", "1")
    return Mirror(NOWHERE, timeout=0.5)


def test_copy_steps_copies_what_the_target_lacks(store, target):
    large = torch.rand(1 << 20)
    for step in (1, 2):
        store.save(step, {"t": large, "step": step})
    seen = []
    with cairn.open(target, mode="a") as other:
        first = cairn.copy_steps(store, other, [1], progress=lambda *given: seen.append(given))
        both = cairn.copy_steps(store, other)
        assert [one.outcome for one in (*first, *both)] == ["copied", "present", "copied"]
        assert first[0].copied_bytes > large.nbytes > both[1].copied_bytes
        assert both[1].reused_segments == 1
        assert seen[0] == (1, 0, first[0].copied_bytes)
        assert_same(other.read(step=2), {"t": large, "step": 2})


def test_copy_steps_can_be_stopped_and_refuses_bad_arguments(store, target):
    store.save(1, {"t": torch.rand(1 << 20)})
    with cairn.open(target, mode="a") as other:
        with pytest.raises(cairn.Unavailable, match="stopped"):
            cairn.copy_steps(store, other, progress=lambda *_: False)
        with pytest.raises(ZeroDivisionError):
            cairn.copy_steps(store, other, progress=lambda *_: 1 / 0)
        assert other.steps() == []
        with pytest.raises(cairn.NotFound):
            cairn.copy_steps(store, other, [2])
        with pytest.raises(cairn.Invalid, match="same store"):
            cairn.copy_steps(other, other)
        with pytest.raises(cairn.Invalid, match="max_rate=0"):
            cairn.copy_steps(store, other, max_rate=0)
        other.save(1, {"other": 1})
        with pytest.raises(cairn.Conflict):
            cairn.copy_steps(store, other)
        cairn.copy_steps(store, other, overwrite=True)
        assert list(other.keys()) == ["t"]


def test_durable_saves_are_copied_to_the_mirror(store, target):
    store.save_async(1, state_of(1)).mirrored(60)
    assert store.mirror_status() == [], "without a mirror, the save is all"
    with pytest.raises(cairn.Conflict):
        store.save(1, state_of(1), mirror=target)
    handle = store.save_async(2, state_of(2), mirror=target)
    handle.mirrored(60)
    assert_same(cairn.open(target).read(), state_of(2))
    store.save(3, state_of(3), mirror=target)
    store.wait_mirrored(60)
    assert steps_of(target) == [2, 3]
    status = store.mirror_status()[0]
    assert (status.last_step, status.step, status.waiting, status.error) == (3, None, (), None)


def test_bad_mirrors_are_refused_before_anything_is_saved(store, path, tmp_path):
    for options in ({"every": 0}, {"max_pending": 0}, {"timeout": 0}, {"keep_last": -1}):
        with pytest.raises(cairn.Invalid, match=list(options)[0]):
            Mirror("m", **options)
    chains = [path], [tmp_path / "m", f"file:{tmp_path}/m"], [
        Mirror(tmp_path / "m", every=4),
        Mirror(tmp_path / "n", every=6),
    ]
    for chain in chains:
        with pytest.raises(cairn.Invalid, match="mirror"):
            store.save(1, {}, mirror=chain)
    store.save(1, state_of(1), mirror=tmp_path / "m")
    with pytest.raises(cairn.Invalid, match="other options"):
        store.save(2, {}, mirror=Mirror(tmp_path / "m", max_rate=1))
    assert store.steps() == [1]


def test_buckets_with_the_same_name_on_two_servers_are_two_stores():
    first, second = (f"s3://bucket/run?endpoint=http://127.0.0.1:{port}" for port in (1, 2))
    assert [str(one) for one in mirror_chain([second], first)] == [second]
    with pytest.raises(cairn.Invalid, match="itself"):
        mirror_chain(["s3://bucket/run/?region=r&endpoint=http://127.0.0.1:1"], first)


def test_steps_are_pruned_only_after_they_are_mirrored(path, target):
    # Another writer has the mirror, so that the copies wait; then it closes.
    other = cairn.open(target, mode="a")
    with cairn.open(path, mode="a", grace=0) as store:
        with pytest.warns(RuntimeWarning, match="step 1 is not in the mirror"):
            with Saver(store, every=1, keep_last=1, mirror=target) as saver:
                for step in range(1, 4):
                    saver.step(step, state_of(step))
                store.save(9, {"n": 9})
                store.prune(keep_last=1)
                assert store.steps() == [1, 2, 3, 9]
                store.delete(9)
                wait_until(lambda: store.mirror_status()[0].error is not None)
                assert str(os.getpid()) in str(store.mirror_status()[0].error)
                other.close()
        assert store.steps() == [3]
    assert steps_of(target) == [1, 2, 3]


def test_a_slow_mirror_does_not_delay_saves_and_skips_steps(path, target, monkeypatch):
    copy, may_copy = MirrorWorker._copy, threading.Event()
    monkeypatch.setattr(
        MirrorWorker, "_copy", lambda *arguments: may_copy.wait(60) and copy(*arguments)
    )
    with cairn.open(path, mode="a", grace=0) as store:
        mirror = Mirror(target, max_pending=2)
        handles = []
        for step in range(1, 41):
            handles.append(store.save_async(step, {"t": torch.rand(1 << 18)}, mirror=mirror))
            handles[-1].result(60)
            if step == 1:
                wait_until(lambda: store.mirror_status()[0].step == 1)
            store.prune(keep_last=1)
        # All saves are durable, and at most one running and two waiting steps are kept for it.
        assert store.steps()[-1] == 40 and len(store.steps()) <= 4
        assert store.mirror_status()[0].last_step is None
        may_copy.set()
        with pytest.raises(cairn.Unavailable, match="step 20 .* more than 2 steps were waiting"):
            handles[19].mirrored(60)
        handles[39].mirrored(60)
    assert steps_of(target) == [1, 39, 40]


def test_an_unreachable_mirror_warns_and_fails_the_close_but_no_save(path, unreachable):
    with cairn.open(path, mode="a", grace=0) as store:
        with pytest.warns(RuntimeWarning, match="trying again"):
            with pytest.raises(cairn.Unavailable, match="127.0.0.1"):
                with Saver(store, every=1, keep_last=1, mirror=unreachable) as saver:
                    for step in range(1, 5):
                        saver.step(step, state_of(step))
        assert store.steps()[-1] == 4 and saver.last_step == 4
        assert_same(store.read(), state_of(4))
        with pytest.warns(RuntimeWarning), pytest.raises(cairn.Unavailable):
            store.save_async(5, state_of(5), mirror=unreachable).mirrored(60)


def test_an_error_of_the_training_does_not_wait_for_retries(path, unreachable):
    patient = Mirror(NOWHERE, timeout=3600)
    with pytest.warns(RuntimeWarning), pytest.raises(ZeroDivisionError):
        with cairn.open(path, mode="a") as store:
            with Saver(store, every=1, mirror=patient) as saver:
                saver.step(1, state_of(1))
                raise ZeroDivisionError
    assert steps_of(path) == [1]


def test_a_preempted_job_mirrors_its_last_step(path, target):
    with pytest.raises(SystemExit):
        with cairn.open(path, mode="a") as store:
            with Saver(store, every=100, mirror=target, mirror_every=1000) as saver:
                os.kill(os.getpid(), signal.SIGTERM)
                saver.step(7, state_of(7))
    assert steps_of(target) == [7]


def test_another_step_in_the_mirror_is_a_conflict_unless_it_may_be_replaced(path, target):
    with cairn.open(target, mode="a") as other:
        other.save(1, {"n": 0})
    with cairn.open(path, mode="a") as store:
        with pytest.warns(RuntimeWarning), pytest.raises(cairn.Conflict):
            with Saver(store, every=1, mirror=target) as saver:
                saver.step(1, state_of(1))
        with Saver(store, every=1, mirror=target, overwrite=True) as saver:
            saver.step(1, state_of(1))
    with cairn.open(target) as other:
        assert_same(other.read(), state_of(1))


def test_a_restarted_job_mirrors_what_is_missing(path, target):
    with cairn.open(path, mode="a") as store:
        for step in (1, 2):
            store.save(step, state_of(step), mirror=target)
        store.wait_mirrored(60)
        for step in (3, 4, 5, 6):
            store.save(step, state_of(step))
    with cairn.open(target, mode="a", grace=0) as other:
        other.delete(1)
    with cairn.open(path, mode="a") as store:
        with Saver(store, every=1, mirror=target, mirror_every=2):
            pass
    # Step 1 was deleted from the mirror on purpose: it is older than its newest step.
    assert steps_of(target) == [2, 4, 6]


def test_resume_finds_the_newest_step_wherever_it_is(path, target):
    with cairn.open(path, mode="a") as store, Saver(store, every=1, mirror=target) as saver:
        state = state_of(0)
        assert saver.resume(state) is None and state["step"] == 0
        for step in (1, 2, 3):
            saver.step(step, state_of(step))
    shutil.rmtree(path)
    with cairn.open(path, mode="a") as store, Saver(store, every=1, mirror=target) as saver:
        assert saver.resume(state) == saver.last_step == 3
        assert_same(state, state_of(3))
        saver.save(4, state_of(4))
        assert saver.resume(state, step=1) == 1 and state["step"] == 1
        assert saver.resume(state) == 4
        with pytest.raises(cairn.NotFound):
            saver.resume(state, step=9)
        assert store.steps() == [4]
    assert steps_of(target) == [1, 2, 3, 4]


def test_resume_does_not_guess_while_a_mirror_is_unreachable(path, unreachable):
    with cairn.open(path, mode="a") as store:
        store.save(1, state_of(1))
    with cairn.open(path) as store, Saver(store, every=1, signals=()) as saver:
        saver._mirrors = (unreachable,)
        with pytest.raises(cairn.Unavailable):
            saver.resume(state_of(0))
        with pytest.warns(RuntimeWarning, match="not read"):
            assert saver.resume(state_of(0), step=1) == 1


def test_tiers_in_memory_on_disk_and_far_away(tmp_path):
    # The nearest tier is in memory, as on a training node.
    fast = f"/dev/shm/cairn-test-{os.getpid()}"
    near, far = tmp_path / "disk", tmp_path / "far"
    chain = [Mirror(near, every=4, keep_last=2), Mirror(far, every=8)]
    try:
        with cairn.open(fast, mode="a", grace=0) as store:
            with Saver(store, every=2, keep_last=2, mirror=chain) as saver:
                for step in range(1, 25):
                    saver.step(step, state_of(step))
                    store.wait_mirrored(60)
            assert store.steps() == [22, 24]
    finally:
        fast_steps = steps_of(fast)
        shutil.rmtree(fast)
    assert fast_steps == [22, 24]
    assert steps_of(near) == [20, 24] and steps_of(far) == [8, 16, 24]
    # On another node: the nearest tier is empty.
    with cairn.open(fast, fallback=[near, far]) as store:
        assert store.steps() == [8, 16, 20, 24]
        for step in store.steps():
            assert_same(store.read(step=step), state_of(step))
        state = state_of(0)
        assert store.load(state).step == 24 and store.load(state, 8).step == 8
        assert store.diff(8, 16).changed == ("step", "t")
        assert_same(store.read_slice("t", [(0, 2)], step=16), torch.full((2,), 16.0))
        with pytest.raises(cairn.NotFound):
            store.read(step=9)


def test_loads_use_the_nearest_store_that_has_the_step(path, target):
    with cairn.open(path, mode="a") as store:
        store.save(1, state_of(1), mirror=target)
        store.wait_mirrored(60)
    shutil.rmtree(target / "segments")
    with cairn.open(path, fallback=[target]) as store:
        assert_same(store.read(step=1), state_of(1))
    with cairn.open(target, fallback=[path]) as store:
        with pytest.raises(cairn.Error):
            store.read(step=1)


def test_of_different_steps_with_one_number_the_one_saved_last_is_used(path, target):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"v": "old"})
    with cairn.open(target, mode="a") as other:
        other.save(1, {"v": "new"})
    for order in ((path, target), (target, path)):
        with cairn.open(order[0], fallback=order[1:]) as store:
            assert store.read(step=1) == store.read() == {"v": "new"}
            state = {"v": ""}
            store.load(state)
            assert state == {"v": "new"}


def test_a_store_that_no_place_has_is_not_found(path, target):
    with pytest.raises(cairn.NotFound):
        cairn.open(path, fallback=[target])
    with cairn.open(path, mode="a", fallback=[target]) as store:
        assert store.steps() == []
        with pytest.raises(cairn.NotFound):
            store.load({"v": 1})


def test_a_process_that_forgets_to_close_copies_at_exit_and_a_child_does_not(path, target):
    script = """
        import os, sys, cairn, torch
        store = cairn.open(sys.argv[1], mode="a")
        store.save_async(1, {"t": torch.rand(1000)}, mirror=sys.argv[2]).mirrored(60)
        child = os.fork()
        if child == 0:
            print(store.mirror_status(), flush=True)
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.save(2, {"t": torch.rand(1 << 20)}, mirror=sys.argv[2])
    """
    result = run_python(script, path, target)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")
    assert steps_of(target) == [1, 2]


@pytest.mark.parametrize(
    "place", ["_next_job", "_await_save", "_copy", "_handle", "_finish", "_pass_on", "_fail"]
)
def test_nobody_waits_for_a_mirror_whose_thread_has_ended(
    path, target, tmp_path, monkeypatch, place
):
    """A wait ends, whatever ends the thread at whatever place; and the next step is copied."""
    real = getattr(MirrorWorker, place)
    armed = [True]

    def fail(self, *args):
        if armed and threading.current_thread().name == "cairn-mirror":
            armed.clear()
            raise SystemExit(place)
        return real(self, *args)

    monkeypatch.setattr(MirrorWorker, place, fail)
    if place == "_fail":
        monkeypatch.setattr(MirrorWorker, "_copy", lambda *_: Unavailable("no copy"))
    mirrors = [Mirror(target), Mirror(tmp_path / "far")]
    store = cairn.open(path, mode="a")
    handle = store.save_async(1, state_of(1), mirror=mirrors)
    try:
        handle.mirrored(60)
    except cairn.Unavailable as error:
        assert place in str(error) or place == "_next_job"
    try:
        store.wait_mirrored(60)
    except cairn.Unavailable:
        pass
    assert not armed
    monkeypatch.undo()
    store.save(2, state_of(2), mirror=mirrors)
    store.wait_mirrored(60)
    store.close()
    assert 2 in steps_of(target) and 2 in steps_of(tmp_path / "far")
