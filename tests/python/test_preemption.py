"""A training process that is terminated, killed and restarted: its losses are unaffected."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from cairn_testing import steps_of
from interpreters import Program

import cairn

# Prints one line per step: its number and its exact loss, which depends on all that is restored.
TRAIN = """
import sys, torch, cairn
from cairn.torch import Saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

path, last, every, held, gate = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

class App:
    def state_dict(self):
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state}

    def load_state_dict(self, state):
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

def make_state():
    return {"app": App(), "rng": torch.get_rng_state()}

with cairn.open(path, mode="a") as store:
    with Saver(store, every=every, keep_last=2) as saver:
        state = make_state()
        done = saver.resume(state)
        if done is not None:
            torch.set_rng_state(state["rng"])
        print("resumed", done, flush=True)
        for step in range(0 if done is None else done + 1, last + 1):
            batch = torch.randn(8, 16)
            loss = (model(batch).squeeze(1) - batch.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(step, loss.item().hex(), flush=True)
            if step == held:
                open(gate).close()  # until the test opens it, too
            saver.step(step, make_state)
print("end", flush=True)
"""


def start(path: Path, *, last: int = 60, every: int = 1000, held: int = -1) -> Program:
    """A training that waits in the step `held` until `let_go` is called."""
    if held >= 0:
        os.mkfifo(gate_of(path))
    arguments = map(str, (path, last, every, held, gate_of(path)))
    return Program(["-c", TRAIN, *arguments])


def gate_of(path: Path) -> Path:
    return path.with_name("gate")


def let_go(path: Path) -> None:
    gate_of(path).open("w").close()


def read_until(child: Program, step: int) -> list[list[str]]:
    lines = []
    for line in child.stdout:
        lines.append(line.split())
        if lines[-1][0] == str(step):
            return lines
    raise AssertionError(f"it ended before step {step}: {child.communicate()[1]}")


def finish(child: Program, before: list[list[str]]) -> tuple[list[list[str]], str]:
    """All lines of its standard output, and its standard error."""
    out, err = child.communicate(timeout=250)
    return before + [line.split() for line in out.splitlines()], err


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> list[list[str]]:
    """The lines of an uninterrupted run."""
    child = start(tmp_path_factory.mktemp("whole") / "store")
    lines, err = finish(child, [])
    assert child.returncode == 0, err
    assert lines[0] == ["resumed", "None"] and lines[-1] == ["end"]
    return lines[1:-1]


@pytest.mark.parametrize("signals", [1, 2], ids=["once", "twice"])
def test_a_run_that_is_told_to_end_goes_on_as_if_nothing_had_been(path, whole_run, signals):
    child = start(path, held=11)
    before = read_until(child, 11)
    for _ in range(signals):
        child.send_signal(signal.SIGTERM)
    let_go(path)
    lines, err = finish(child, before)

    assert child.returncode == 143, err
    assert err == ""
    last = int(lines[-1][0])
    assert last == 11
    assert steps_of(path) == [0, last]

    child = start(path)
    again, err = finish(child, [])
    assert child.returncode == 0, err
    assert again[0] == ["resumed", str(last)]
    assert lines[1:] + again[1:-1] == whole_run


def test_a_kill_while_steps_are_saved_leaves_the_last_durable_one(path, whole_run):
    child = start(path, every=1, held=20)
    before = read_until(child, 20)
    child.send_signal(signal.SIGKILL)
    lines, _ = finish(child, before)
    assert child.returncode == -signal.SIGKILL
    with cairn.open(path, mode="a") as store:
        latest = store.steps()[-1]
        # Step n is durable before step n + 2 begins to be saved.
        assert latest >= int(lines[-1][0]) - 2

    child = start(path)
    again, err = finish(child, [])
    assert child.returncode == 0, err
    assert lines[1 : latest + 2] + again[1:-1] == whole_run
