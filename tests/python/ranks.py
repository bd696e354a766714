"""Runs a function on several ranks: real processes in one gloo group, with a deadline.

    def save_on(rank, path):            # of a module, so that the processes find it
        with cairn.open(path, mode="a") as store: ...
        return store.world_size

    def test_something(path):
        assert run_on_ranks(save_on, path) == [4, 4, 4, 4]

    @with_ranks(2)                  # a test that only asserts on the ranks
    def test_something_else(rank, path): ...

The processes are new, and yet start in tens of milliseconds each (interpreters.py).
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import inspect
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from interpreters import Program

PROGRAM = "import sys, ranks; ranks.run_rank(sys.argv[1], int(sys.argv[2]))"


class RanksFailed(AssertionError):
    """Ranks raised, died or hung. The text contains the output of each of them."""


class _Job(NamedTuple):
    """What is the same for all ranks of one call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    world_size: int
    timeout: float
    has_group: bool


def run_on_ranks(
    function: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 1200.0,
    may_die: tuple[int, ...] = (),
    has_group: bool = True,
) -> list[Any]:
    """Returns what ``function(rank, *args)`` returns on each rank of a new gloo group.

    Args:
        has_group: False for a process without a group; requires one rank.
        timeout: seconds after which ranks that still run are killed, on a machine of any speed.
        may_die: ranks that may end without a result; in its place is then their exit status.

    Raises:
        RanksFailed: a rank raised, ended without a result, or was killed.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        job = _Job(function, args, world_size, timeout, has_group)
        (folder / "job").write_bytes(pickle.dumps(job))
        programs = [Program(["-c", PROGRAM, name, str(rank)]) for rank in range(world_size)]
        deadline = time.monotonic() + timeout
        results, complaints = [], []
        for rank, program in enumerate(programs):
            kind, value = _result_of(program, folder / f"{rank}.result", deadline)
            results.append(value)
            if kind != "done" and not (kind == "died" and rank in may_die):
                log = (folder / f"{rank}.log").read_text(errors="replace")[-4000:]
                complaints.append(f"--- rank {rank} {kind}: {value}\n{log}")
    if complaints:
        raise RanksFailed("\n".join(complaints))
    return results


def with_ranks(world_size: int = 4, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Makes a test of a function of the rank and of fixtures. The options are those of
    `run_on_ranks`."""

    def made(function: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(function)
        def test(**fixtures: Any) -> None:
            run_on_ranks(test, *map(fixtures.get, names), world_size=world_size, **options)

        signature = inspect.signature(function)
        _, *names = signature.parameters
        test.__signature__ = signature.replace(
            parameters=[signature.parameters[name] for name in names]
        )
        return test

    return made


in_new_process = with_ranks(1, has_group=False)
"""Makes a test that runs in a new process without a group."""


def _result_of(program: Program, file: Path, deadline: float) -> tuple[str, Any]:
    """("done", result), ("raised", traceback), ("died", exit status) or ("hung", deadline)."""
    try:
        status = program.wait(max(0.001, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        program.kill()
        program.wait()
        return "hung", error
    finally:
        program.stdout.close()
    return pickle.loads(file.read_bytes()) if file.exists() else ("died", status)


def run_rank(folder: str, rank: int) -> None:
    """The program of a rank."""
    log = open(os.path.join(folder, f"{rank}.log"), "w", buffering=1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    try:
        job: _Job = pickle.loads(Path(folder, "job").read_bytes())
        # The log then shows where a rank hangs.
        faulthandler.dump_traceback_later(max(job.timeout - 2, job.timeout / 2), file=log)
        with _group(rank, job, folder):
            function = inspect.unwrap(job.function)  # of `with_ranks`
            result = "done", function(rank, *job.args)
    except BaseException:
        result = "raised", traceback.format_exc()
    # By value: torch's own reducers leave tensors in this process, which is about to end.
    written = Path(folder, f"written.{rank}")
    written.write_bytes(pickle.dumps(result))
    written.rename(Path(folder, f"{rank}.result"))
    os._exit(0)  # stores that are still open are not the subject


@contextlib.contextmanager
def _group(rank: int, job: _Job, folder: str) -> Iterator[None]:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not job.has_group:
        yield
        return
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=job.timeout),
    )
    dist.barrier()  # otherwise a fast rank could leave before all have connected
    try:
        yield
    finally:
        dist.destroy_process_group()
