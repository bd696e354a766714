"""Runs the trainers of the examples as real processes, kills them, and reads what they print."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
_STEP = re.compile(r"step (\d+) loss (\S+)")
_SECONDS = 600.0


class Run(NamedTuple):
    """What a trainer printed."""

    losses: dict[int, str]
    """By step."""
    weights: str | None
    """Digest of the weights at the end; None if it was killed."""
    output: str


def train(
    script: str | Path,
    *arguments: object,
    ranks: int = 0,
    kill_at: int | None = None,
    dies: bool = False,
) -> Run:
    """Runs an example, or another program. With `kill_at`, all of its processes are killed when it
    prints that step; with `dies`, it kills itself."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    program = [str(EXAMPLES / script), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "python")}
    environment.setdefault("OMP_NUM_THREADS", "1")
    process = subprocess.Popen(
        [sys.executable, *(launcher if ranks else []), *program], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
    )
    lines, killed = [], False
    deadline = time.monotonic() + _SECONDS
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.append(line)
            found = _STEP.search(line)
            if kill_at is not None and found and int(found[1]) >= kill_at:
                os.killpg(process.pid, signal.SIGKILL)
                killed = True
                break
            assert time.monotonic() < deadline, "".join(lines)
        process.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    output = "".join(lines)
    assert killed or (process.returncode == 0) != dies, output
    assert killed == (kill_at is not None), output
    weights = re.search(r"weights (\w+)", output)
    losses = {int(step): loss for step, loss in _STEP.findall(output)}
    return Run(losses, weights[1] if weights else None, output)


def assert_continues(whole: Run, parts: list[Run]) -> None:
    """Asserts that a run that was killed and resumed is the same as one that was not."""
    for part in parts:
        assert part.losses, part.output
        assert part.losses == {step: whole.losses[step] for step in part.losses}, part.output
    assert parts[-1].weights == whole.weights is not None
    assert min(parts[-1].losses) > 1, "it has started again: " + parts[-1].output
