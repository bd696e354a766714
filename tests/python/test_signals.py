"""Ctrl-C at any moment of a save.

`kv_kill_test` kills writers at any moment, which is the same to a store as SIGTERM, and
`kv_two_writers_test` stops and continues them.
"""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import pytest
from cairn_testing import assert_same
from interpreters import Program

import cairn

ROUNDS = int(os.environ.get("CAIRN_SIGNAL_ROUNDS", "15"))

# Saves in the foreground and in the background until a file exists; prints the steps that are
# durable. A line is written by one call, so that a signal leaves no part of it.
WRITER = """
import os, sys, cairn
from test_signals import state_of

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

with cairn.open(sys.argv[1], mode="a") as store:
    step = 0
    while True:
        try:
            while not os.path.exists(sys.argv[2]):
                step += 1
                if step % 2:
                    store.save(step, state_of(step))
                else:
                    store.save_async(step, state_of(step)).result()
                say(step)
            break
        except KeyboardInterrupt:
            say("interrupted", step)
"""


def state_of(step: int) -> dict:
    """Some leaves change at every step, some at every third step, one never."""
    always, sometimes = np.random.default_rng(step), np.random.default_rng(step // 3)
    return {
        "always": always.integers(0, 255, 300_001, dtype=np.uint8),
        "small": [always.random(step % 7 + 1) for _ in range(5)],
        "sometimes": sometimes.random((257, 129)),
        "never": np.arange(100_000),
        "step": step,
    }


@pytest.mark.timeout(1500 + 10 * ROUNDS)
def test_ctrl_c_at_any_moment_loses_no_step(path, tmp_path):
    stop = tmp_path / "stop"
    writer = Program(["-c", WRITER, str(path), str(stop)])
    durable: list[int] = []

    def read_until(is_last) -> None:
        for line in writer.stdout:
            word = line.split()[0]
            durable.extend([int(word)] if word.isdigit() else [])
            if is_last(word):
                return
        raise AssertionError(f"the writer has ended: {writer.communicate()[1]}")

    rng = random.Random(1)
    for _ in range(ROUNDS):
        read_until(str.isdigit)
        time.sleep(rng.uniform(0, 0.03))  # anywhere in a save; what follows is true at each moment
        writer.send_signal(signal.SIGINT)
        read_until("interrupted".__eq__)
    stop.touch()
    durable += [int(line) for line in writer.stdout if line.strip().isdigit()]
    assert writer.wait(600) == 0
    assert len(durable) >= ROUNDS
    with cairn.open(path, mode="a") as store:
        assert set(durable) <= set(store.steps())
        for step in store.steps():
            assert_same(store.read(step=step), state_of(step))
        store.save(10**6, {"v": 1})
