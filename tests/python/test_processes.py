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


def write_until_killed(path: Path, last_step: int, seconds: float) -> list[list[str]]:
    """Runs a writer from `last_step` for some seconds, then kills it. Returns what it printed."""
    child = Program(["-c", WRITER, str(path), str(last_step)])
    assert child.stdout.readline() == "open\n"
    time.sleep(seconds)
    assert child.poll() is None, "the writer ended by itself"
    child.send_signal(signal.SIGKILL)
    lines = child.stdout.read().splitlines(keepends=True)
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
        printed = write_until_killed(path, last_step, rng.uniform(0, 0.5))
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
