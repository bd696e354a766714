"""Processes: forks, and a writer that is killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from cairn_testing import assert_same, run_python
from interpreters import Program

import cairn


def test_a_forked_child_is_told_to_open_again(path):
    # In a separate process, because a fork copies everything that pytest and torch have running.
    result = run_python(
        """
        import os, sys, cairn
        store = cairn.open(sys.argv[1], mode="a")
        store.save(1, {"v": 1})
        handle = store.save_async(2, {"v": 2})
        if os.fork() == 0:
            calls = [store.steps, store.read, store.close, handle.result, lambda: store.save(3, {})]
            for call in calls:
                try:
                    call()
                except cairn.Invalid as error:
                    print("fork" in str(error), flush=True)
            print(repr(handle) != "", cairn.open(sys.argv[1]).steps()[0] == 1, flush=True)
            del store, handle, calls, call
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        handle.result()
        store.save(3, {"v": 3})
        store.close()
        """,
        path,
    )
    assert result.stdout.split() == ["True"] * 7
    assert result.stderr == ""
    with cairn.open(path) as store:
        assert store.steps() == [1, 2, 3]


FORK = """
import os, sys, torch, cairn

torch.set_num_threads(1)

def state(step):
    generator = torch.Generator().manual_seed(step)
    return {
        "large": torch.randn(1_500_000, generator=generator),
        "same": torch.arange(1_000_000),
        "small": [torch.randn(50, generator=generator) for _ in range(20)],
        "step": step,
    }

def check(store, step):
    got = store.read(step=step)
    want = state(step)
    assert got["step"] == step
    assert torch.equal(got["large"], want["large"]) and torch.equal(got["same"], want["same"])
    assert all(torch.equal(a, b) for a, b in zip(got["small"], want["small"]))

def save_all(path, first):
    with cairn.open(path, mode="a") as store:
        store.save(first, state(first))
        store.save(first + 1, state(first + 1), compress=True)
        store.save_async(first + 2, state(first + 2), deltas=2, statistics=True).result()
        store.delete(first)
        store.compact()
        check(store, first + 1)
        target = state(0)
        store.load(target, step=first + 2)
        assert torch.equal(target["large"], state(first + 2)["large"])

def in_child(work):
    pid = os.fork()
    if pid == 0:
        import signal
        signal.alarm(60)  # a hang is a failure
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def test_a_forked_child_that_opens_a_store_saves(path, tmp_path):
    """The threads of the parent, and those of its libraries, do not exist in the child."""
    source = FORK + """
path, other = sys.argv[1:]
with cairn.open(path, mode="a") as store:
    store.save(1, state(1))
    store.save_async(2, state(2)).result()
    check(store, 2)
    in_child(lambda: save_all(other, 1))  # while the parent has its store open
    store.save(3, state(3))
    check(store, 3)
in_child(lambda: save_all(path, 10))  # the same store
in_child(lambda: in_child(lambda: save_all(path, 20)))
with cairn.open(path, mode="a") as store:
    assert store.steps() == [1, 2, 3, 11, 12, 21, 22]
    for step in store.steps():
        check(store, step)
    store.save(30, state(30))
print("ok")
"""
    assert run_python(source, path, tmp_path / "other").stdout == "ok\n"


def test_a_worker_of_multiprocessing_saves(path, tmp_path):
    """As the workers of a DataLoader, which are forked while the parent has a store open."""
    source = FORK + """
import multiprocessing
path, other = sys.argv[1:]
with cairn.open(path, mode="a") as store:
    store.save(1, state(1))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.starmap_async(save_all, [(f"{other}{i}", 1) for i in range(4)]).get(60)
    store.save(2, state(2))
for i in range(4):
    with cairn.open(f"{other}{i}") as store:
        assert store.steps() == [2, 3]
print("ok")
"""
    assert run_python(source, path, tmp_path / "other").stdout == "ok\n"


KILL_ROUNDS = int(os.environ.get("CAIRN_KILL_ROUNDS", "30"))

# Some leaves change at every step, some at every third step, one never. The sizes are chosen such
# that a save takes a few milliseconds, and the kills hit all of its phases.
STATE = """
import numpy

def state_of(step):
    rng = numpy.random.default_rng(step)
    slow = numpy.random.default_rng(step // 3)
    return {
        "always": rng.integers(0, 255, 300_001, dtype=numpy.uint8),
        "small": [rng.random(step % 7 + 1) for _ in range(5)],
        "sometimes": slow.random((257, 129)),
        "never": numpy.arange(100_000),
        "step": step,
    }
"""

WRITER = (
    STATE
    + """
import sys, cairn

store = cairn.open(sys.argv[1], mode="a")
step = int(sys.argv[2])
print("open", flush=True)
while True:
    step += 1
    if step % 2:
        store.save(step, state_of(step))
    else:
        store.save_async(step, state_of(step)).result()
    print(step, flush=True)
    if step % 5 == 0:
        store.prune(keep_last=3)
        print("pruned", step, flush=True)
"""
)


def write_until_killed(path: Path, last_step: int, rng: random.Random) -> list[list[str]]:
    """Runs a writer from `last_step` until it has printed some lines, and kills it a moment later.
    Returns what it printed."""
    child = Program(["-c", WRITER, str(path), str(last_step)])
    assert child.stdout.readline() == "open\n"
    lines = [child.stdout.readline() for _ in range(rng.randint(0, 12))]
    time.sleep(rng.uniform(0, 0.03))  # anywhere in a save
    assert child.poll() is None, "the writer ended by itself"
    child.send_signal(signal.SIGKILL)
    lines += child.stdout.read().splitlines(keepends=True)
    child.wait()
    return [line.split() for line in lines if line.endswith("\n")]


@pytest.mark.timeout(60 + 10 * KILL_ROUNDS)
def test_a_killed_writer_loses_no_step_that_it_reported(path):
    state_of = state_function()
    rng = random.Random(int(os.environ.get("CAIRN_KILL_SEED", "1")))
    known: set[int] = set()
    last_step = 0
    reported_count = 0
    for _ in range(KILL_ROUNDS):
        printed = write_until_killed(path, last_step, rng)
        reported = {int(words[0]) for words in printed if words[0].isdigit()}
        reported_count += len(reported)
        pruned = [int(words[1]) for words in printed if words[0] == "pruned"]

        with cairn.open(path, mode="a") as store:
            steps = set(store.steps())
            # At most one save can have been durable without being reported.
            assert len(steps - known - reported) <= 1
            newest = max(known | reported, default=0)
            assert steps - known - reported <= {newest + 1}
            # Steps before the last prune, or those of an unfinished prune, may be deleted.
            kept_by = max((step for step in known | reported if step % 5 == 0), default=0)
            assert {step for step in known | reported if step > kept_by - 3} <= steps
            assert not pruned or min(steps) > pruned[-1] - 3
            for step in steps:
                assert_same(store.read(step=step), state_of(step))
            known = steps
            last_step = max(steps, default=0)
            store.save(last_step + 1, state_of(last_step + 1))
            last_step += 1
            known = known | {last_step}
    assert reported_count >= KILL_ROUNDS // 2, "the writers hardly came to write"


def state_function():
    names: dict = {"numpy": np}
    exec(STATE, names)
    return names["state_of"]
