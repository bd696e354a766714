"""Mirrors of a store: copies after saves, pruning, errors, tiers and resumption in one process; and
mirrors in a bucket, on several ranks, and of a job that is killed."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, run_python, state_of, steps_of, wait_until
from dtensors import sharded_state, whole
from interpreters import Program
from process_suites import PROGRAMS
from ranks import run_on_ranks

import cairn
from cairn import Mirror
from cairn._mirror.options import mirror_chain
from cairn._mirror.worker import MirrorWorker
from cairn.errors import Unavailable
from cairn.torch import Saver


@pytest.fixture
def target(tmp_path):
    return tmp_path / "mirror"


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


def test_a_slow_mirror_does_not_delay_saves_and_skips_steps(store, target, monkeypatch):
    copy, may_copy = MirrorWorker._copy, threading.Event()
    monkeypatch.setattr(
        MirrorWorker, "_copy", lambda *arguments: may_copy.wait(600) and copy(*arguments)
    )
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


def test_an_unreachable_mirror_warns_and_fails_the_close_but_no_save(store, unreachable):
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
    patient = dataclasses.replace(unreachable, timeout=3600)
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
    result = run_python(script, path, target, finalizes=True)
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


def state_of_job(step: int) -> dict:
    always = np.random.default_rng(step).integers(0, 255, 300_001, dtype=np.uint8)
    return {"always": always, "never": np.arange(100_000), "step": step}


# Saves every step, keeps two of them, and mirrors the even ones. Prints what it resumes from, each
# step that is durable, and each that the mirror has.
JOB = """
import os, sys, cairn
from cairn import Mirror
from cairn.torch import Saver
from test_mirrors import state_of_job

def show(word, step):
    os.write(1, f"{word} {step}\\n".encode())  # two threads write

store = cairn.open(sys.argv[1], mode="a", grace=0)
store.observe(
    lambda event: event.kind == "mirror" and not event.error and show("copied", event.step))
mirror = Mirror(sys.argv[2], every=2, max_pending=10_000)
saver = Saver(store, every=1, keep_last=2, async_=False, mirror=mirror, signals=())
state = state_of_job(0)
step = saver.resume(state) or 0
assert state["step"] == step
show("resumed", step)
while True:
    step += 1
    saver.step(step, state_of_job(step))
    show("durable", step)
"""


def verify(address) -> None:
    words = [PROGRAMS / "kv-dump", "verify", str(address)]
    result = subprocess.run(words, capture_output=True, timeout=1200)
    assert result.returncode == 0, result.stdout + result.stderr


def contents(address) -> set[int]:
    """The steps of a store that a job has written, each of which is compared."""
    try:
        with cairn.open(address) as store:
            for step in store.steps():
                assert_same(store.read(step=step), state_of_job(step))
            return set(store.steps())
    except cairn.NotFound:
        return set()


def kill_a_job_many_times(path: Path, mirror: str, rounds: int) -> None:
    rng = random.Random(int(os.environ.get("CAIRN_KILL_SEED", "1")))
    local: set[int] = set()
    mirrored: set[int] = set()
    durable: set[int] = set()  # in the local store
    kept: set[int] = set()  # in the mirror when the local store was lost
    copied: set[int] = set()  # to the mirror
    for one in range(rounds):
        job = Program(["-c", JOB, str(path), mirror])
        lines = [job.stdout.readline()]
        while lines[-1].startswith("copied"):  # what the job before it had left to copy
            lines.append(job.stdout.readline())
        assert lines[-1], job.communicate()
        word, resumed = lines[-1].split()
        assert word == "resumed" and int(resumed) == max(local | mirrored, default=0)
        # The job is killed after it has printed a number of words; every other time, of copies.
        last = "copied" if one % 2 else rng.choice(["durable", "resumed"])
        left = rng.randint(1, 4) if last != "resumed" else 0
        while left > 0:
            lines.append(job.stdout.readline())
            assert lines[-1], job.communicate()
            left -= lines[-1].startswith(last)
        time.sleep(rng.uniform(0, 0.03))  # anywhere in a save; what follows is true at each moment
        assert job.poll() is None, "the job ended by itself"
        job.send_signal(signal.SIGKILL)
        lines += job.stdout.read().splitlines(keepends=True)
        job.wait()
        found = [line.split() for line in lines if line.endswith("\n")]
        durable |= {int(step) for word, step in found if word == "durable"}
        copied |= {int(step) for word, step in found if word == "copied"}

        local, mirrored = contents(path), contents(mirror)
        assert max(durable, default=0) <= max(local, default=0)
        assert copied <= mirrored and all(step % 2 == 0 for step in mirrored)
        # An even step is deleted only after it is in the mirror.
        assert {step for step in durable | kept if step % 2 == 0} <= local | mirrored
        if rng.random() < 0.3:  # the next job starts on a machine without the local store
            shutil.rmtree(path)
            local, durable, kept = set(), set(), set(mirrored)
    assert len(copied) >= rounds // 2
    verify(mirror)


def test_a_killed_job_loses_no_step_and_continues_its_mirror(path, tmp_path):
    rounds = int(os.environ.get("CAIRN_KILL_ROUNDS", "4"))
    kill_a_job_many_times(path, str(tmp_path / "mirror"), rounds)


@pytest.mark.slow
def test_a_killed_job_loses_no_step_and_continues_its_mirror_in_a_bucket(path, bucket):
    kill_a_job_many_times(path, bucket, int(os.environ.get("CAIRN_KILL_ROUNDS", "20")))


def train(rank, path, mirror):
    with cairn.open(path, mode="a", timeout=600, grace=0) as store:
        with Saver(store, every=1, keep_last=1, mirror=mirror, mirror_every=2) as saver:
            state = sharded_state(0)
            done = saver.resume(state) or 0
            assert state["step"] == done
            assert torch.equal(state["rows"].full_tensor(), whole("uneven", done))
            for step in range(done + 1, done + 5):
                saver.step(step, lambda: sharded_state(step))
            copies = store.save_async(done + 5, sharded_state(done + 5), mirror=mirror)
            copies.mirrored(60)
        return done, store.steps(), len(store.mirror_status())


def test_ranks_mirror_their_steps_and_resume_from_the_mirror(path, tmp_path):
    mirror = tmp_path / "mirror"
    assert run_on_ranks(train, path, mirror) == [(0, [4, 5], 1)] + [(0, [4, 5], 0)] * 3
    assert steps_of(mirror) == [2, 4, 5]
    shutil.rmtree(path)
    assert [one[0] for one in run_on_ranks(train, path, mirror, world_size=3)] == [5] * 3
    verify(path)
    verify(mirror)


def fail_to_mirror(rank, path, mirror):
    with cairn.open(path, mode="a", timeout=600) as store:
        try:
            with Saver(store, every=1, mirror=Mirror(mirror, timeout=0.1)) as saver:
                saver.step(1, sharded_state(1))
        except cairn.Error as error:
            return type(error).__name__, store.steps()


def test_a_mirror_that_fails_fails_the_close_on_all_ranks(path, tmp_path):
    with cairn.open(tmp_path / "mirror", mode="a"):  # another job has it
        outcome = run_on_ranks(fail_to_mirror, path, tmp_path / "mirror", world_size=2)
    assert outcome == [("Conflict", [1])] * 2
