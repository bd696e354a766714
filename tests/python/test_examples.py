"""The examples of `examples/` run, and resume where they were stopped."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cairn_testing import run_python, steps_of
from interpreters import Program

import cairn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_SECONDS = 1200


def start(args: list[str], ranks: int) -> Program | subprocess.Popen:
    """Starts an example in one process, or with `ranks` under torchrun itself."""
    if not ranks:
        return Program(args, environment())
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [sys.executable, *launcher, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    packages = str(Path(cairn.__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}


def run(name: str, *arguments: object, ranks: int = 0) -> list[str]:
    """Runs an example, on `ranks` ranks as torchrun would start them. Returns the lines that it
    prints."""
    args = [str(EXAMPLES / name), *map(str, arguments)]
    environments = rank_environments(ranks) if ranks else [environment()]
    programs = [Program(args, each) for each in environments]
    results = [program.communicate(TIMEOUT_SECONDS) for program in programs]
    for program, (_, errors) in zip(programs, results):
        assert program.returncode == 0, errors[-4000:]
    return [line for output, _ in results for line in output.splitlines()]


def rank_environments(count: int) -> list[dict[str, str]]:
    """The environment of each rank, as torchrun sets it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    counts = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [
        {**environment(), **meeting, **counts, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(count)
    ]


def losses(lines: list[str]) -> dict[int, float]:
    """The losses by step."""
    found = [re.search(r"step (\d+) loss ([\d.]+)", line) for line in lines]
    return {int(match[1]): float(match[2]) for match in found if match}


def stop(
    name: str, *arguments: object, after: str, number: int, ranks: int = 0
) -> tuple[list[str], int]:
    """Sends a signal once a line contains `after`. Returns all lines and the exit status."""
    child = start([str(EXAMPLES / name), *map(str, arguments)], ranks)
    lines = []
    for line in child.stdout:
        lines.append(line)
        if after in line:
            break
    child.send_signal(number)
    rest, _ = child.communicate(timeout=TIMEOUT_SECONDS)
    return [line.rstrip() for line in lines] + rest.splitlines(), child.returncode


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_plain_torch_goes_on_after_any_end(path, tmp_path, number, status):
    whole = losses(run("plain_torch.py", tmp_path / "whole", "--steps", 60))
    assert list(whole) == list(range(1, 61)) and whole[60] < whole[1]

    options = (path, "--steps", 100_000, "--every", 10)
    stopped, code = stop("plain_torch.py", *options, after="step 33 ", number=number)
    assert code == status
    with cairn.open(path) as store:
        done = store.steps()[-1]
    assert done == max(losses(stopped)) if number == signal.SIGTERM else done >= 20
    last = done + 20
    resumed = run("plain_torch.py", path, "--steps", last)
    assert resumed[0] == f"continues after step {done}"
    again = losses(resumed)
    assert list(again) == list(range(done + 1, last + 1))
    reference = losses(run("plain_torch.py", tmp_path / "reference", "--steps", last))
    assert again == {step: reference[step] for step in again}


def test_fsdp2_goes_on_with_another_number_of_ranks(path, tmp_path):
    whole = losses(run("fsdp2_torchrun.py", tmp_path / "whole", "--steps", 12, ranks=4))
    first = run("fsdp2_torchrun.py", path, "--steps", 6, ranks=4)
    second = run("fsdp2_torchrun.py", path, "--steps", 12, ranks=3)

    assert second[0] == "continues after step 6"
    got = {**losses(first), **losses(second)}
    assert list(got) == list(range(1, 13))
    # Three ranks add up in another order than four.
    assert got == pytest.approx(whole, abs=2e-6)
    with cairn.open(path) as store:
        assert store.keys()["app.model.0.weight"].shape == (64, 16)


def test_sigterm_to_torchrun_makes_all_ranks_save(path):
    lines, _ = stop(
        "fsdp2_torchrun.py",
        *(path, "--steps", 100_000, "--every", 50_000),
        after="step 5 ",
        number=signal.SIGTERM,
        ranks=2,
    )
    done = max(losses(lines))
    assert steps_of(path) == [done] and done >= 5


def test_an_inference_process_follows_the_trainer(path, monkeypatch):
    file = EXAMPLES / "live_inference.py"
    server = start(
        [str(file), "serve", str(path), "--until", "40", "--timeout", str(TIMEOUT_SECONDS)], ranks=0
    )
    served = ""

    def until_served(_: float) -> None:
        """What the trainer does instead of a pause after each save."""
        nonlocal served
        for line in server.stdout:
            served += line
            if line.startswith("serving"):
                return
        raise AssertionError(server.communicate()[1])

    trainer = runpy.run_path(str(file))
    monkeypatch.setitem(trainer["train"].__globals__, "time", SimpleNamespace(sleep=until_served))
    monkeypatch.setattr(sys, "argv", [file.name, "train", str(path), "--steps", "40"])
    trainer["main"]()
    rest, errors = server.communicate(timeout=TIMEOUT_SECONDS)
    assert server.returncode == 0, errors
    served += rest
    steps = [int(step) for step in re.findall(r"serving step (\d+)", served)]
    assert steps == [10, 20, 30, 40]
    # The last layer has 2,049 parameters; the frozen ones were read once.
    read = [int(kib) for kib in re.findall(r"(\d+) KiB read", served)]
    assert len(read) == len(steps) - 1 and max(read) < 100


@pytest.mark.skipif(
    importlib.util.find_spec("pytorch_lightning") is None,
    reason="pytorch-lightning is not installed",
)
def test_lightning_goes_on_after_its_last_epoch(path, tmp_path):
    # One process for each run, forked from one that has imported Lightning, which takes seconds.
    source = """
        import os, runpy, sys
        import pytorch_lightning
        script, whole, path = sys.argv[1:]
        for arguments in ([whole, "5"], [path, "2"], [path, "5"]):
            print("run", flush=True)
            if os.fork() == 0:
                sys.argv = [script, arguments[0], "--epochs", arguments[1]]
                runpy.run_path(script, run_name="__main__")
                sys.exit()
            assert os.wait()[1] == 0
    """
    ended = run_python(source, EXAMPLES / "lightning_callback.py", tmp_path / "whole", path)
    _, *outputs = ended.stdout.split("run\n")
    whole, first, second = (losses(output.splitlines()) for output in outputs)
    assert len(whole) == 5 and list(second) == list(whole)[2:]
    assert {**first, **second} == whole
    assert steps_of(path) == [3, 4], "keep_last=2"
