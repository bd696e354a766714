"""Signals at any moment of a save: Ctrl-C, SIGTERM, and SIGSTOP with SIGCONT."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from cairn_testing import assert_same
from interpreters import Program
from test_processes import STATE, state_function

import cairn

ROUNDS = int(os.environ.get("CAIRN_SIGNAL_ROUNDS", "15"))

# Saves in the foreground and in the background until a file exists; prints the steps that are
# durable. A line is written by one call, so that a signal leaves no part of it.
WRITER = (
    STATE
    + """
import os, sys, cairn

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

with cairn.open(sys.argv[1], mode="a") as store:
    step = max(store.steps(), default=0)
    say("open")
    while True:
        try:
            if os.path.exists(sys.argv[2]):
                break
            step += 1
            if step % 2:
                store.save(step, state_of(step))
            else:
                store.save_async(step, state_of(step)).result()
            say(step)
        except KeyboardInterrupt:
            say("interrupted", step)
"""
)


class Writer:
    def __init__(self, path: Path, stop: Path) -> None:
        self._stop = stop
        self.program = Program(["-c", WRITER, str(path), str(stop)])
        assert self.program.stdout.readline() == "open\n"
        self.durable: list[int] = []

    def read_until(self, word: str | None) -> None:
        """Reads lines up to one that begins with the word, or up to one more durable step."""
        while True:
            words = self.program.stdout.readline().split()
            assert words, "the writer has ended"
            if words[0].isdigit():
                self.durable.append(int(words[0]))
                if word is None:
                    return
            elif words[0] == word:
                return

    def finish(self) -> int:
        self._stop.touch()
        self.durable += [int(line) for line in self.program.stdout if line.strip().isdigit()]
        return self.program.wait(60)


def check(path: Path, durable: list[int]) -> None:
    """All durable steps exist, and every step has its contents."""
    state_of = state_function()
    with cairn.open(path) as store:
        steps = store.steps()
        assert set(durable) <= set(steps)
        for step in steps:
            assert_same(store.read(step=step), state_of(step))


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_ctrl_c_at_any_moment_loses_no_step(path, tmp_path):
    writer = Writer(path, tmp_path / "stop")
    rng = random.Random(1)
    for _ in range(ROUNDS):
        writer.read_until(None)
        time.sleep(rng.uniform(0, 0.03))
        writer.program.send_signal(signal.SIGINT)
        writer.read_until("interrupted")
    assert writer.finish() == 0
    assert len(writer.durable) >= ROUNDS
    check(path, writer.durable)
    with cairn.open(path, mode="a") as store:
        store.save(10**6, {"v": 1})


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_sigterm_at_any_moment_loses_no_durable_step(path, tmp_path):
    rng = random.Random(2)
    durable: list[int] = []
    for _ in range(ROUNDS):
        writer = Writer(path, tmp_path / "stop")
        writer.read_until(None)
        time.sleep(rng.uniform(0, 0.03))
        writer.program.send_signal(signal.SIGTERM)
        assert writer.program.wait(60) == -signal.SIGTERM
        writer.durable += [int(line) for line in writer.program.stdout if line.endswith("\n")]
        durable += writer.durable
        check(path, durable)
    with cairn.open(path, mode="a") as store:
        store.save(10**6, {"v": 1})


@pytest.mark.timeout(120 + 10 * ROUNDS)
def test_a_writer_that_is_stopped_at_any_moment_continues(path, tmp_path):
    writer = Writer(path, tmp_path / "stop")
    rng = random.Random(3)
    for _ in range(ROUNDS):
        writer.read_until(None)
        time.sleep(rng.uniform(0, 0.03))
        writer.program.send_signal(signal.SIGSTOP)
        try:
            check(path, writer.durable[-3:])
            with pytest.raises(cairn.Conflict, match=f"process {writer.program.pid} "):
                cairn.open(path, mode="a")
        finally:
            writer.program.send_signal(signal.SIGCONT)
    assert writer.finish() == 0
    check(path, writer.durable)
