"""Runs a function on several ranks: real processes in one gloo group, with a deadline.

    def save_on(rank, path):            # of a module, so that the processes find it
        with cairn.open(path, mode="a") as store: ...
        return store.world_size

    def test_something(path):
        assert run_on_ranks(save_on, path) == [4, 4, 4, 4]

The processes are forked from a server that has only imported modules, so that they are new and yet
start in about ten milliseconds each. torch imports 200 modules late (torch._dynamo, at the first
optimizer or checkpoint): the server imports these too, as that takes half a second per rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "torch",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint.state_dict",
        "cairn.dcp",
        "cairn.state_dict",
        "cairn.torch",
        "hypothesis",
        "pytest",
    ]
)


class RanksFailed(AssertionError):
    """Ranks raised, died or hung. The text contains the output of each of them."""


def run_on_ranks(
    function: Callable[..., Any],
    *args: Any,
    world_size: int = 4,
    timeout: float = 250.0,
    may_die: tuple[int, ...] = (),
    has_group: bool = True,
) -> list[Any]:
    """Returns what ``function(rank, *args)`` returns on each rank of a new gloo group.

    Args:
        has_group: False for a process without a group; requires one rank.
        timeout: seconds after which ranks that still run are killed, on a machine of any speed.
        may_die: ranks that may end without a result, which is then None.

    Raises:
        RanksFailed: a rank raised, ended without a result, or was killed.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        pipes: list[Connection] = []
        processes = []
        for rank in range(world_size):
            receiver, sender = _context.Pipe(duplex=False)
            job = _Job(function, args, world_size, timeout, folder, has_group)
            process = _context.Process(target=_run, args=(job, rank, sender))
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        results = _collect(pipes, processes, time.monotonic() + timeout)
        complaints = [
            _complaint(rank, kind, value, Path(folder))
            for rank, (kind, value) in enumerate(results)
            if kind != "done" and not (kind == "died" and rank in may_die)
        ]
    if complaints:
        raise RanksFailed("\n".join(complaints))
    return [value for _, value in results]


def _collect(
    pipes: list[Connection], processes: list[Any], deadline: float
) -> list[tuple[str, Any]]:
    """("done", result), ("raised", traceback), ("died", exit status) or ("hung", None) per rank."""
    results: list[tuple[str, Any]] = [("hung", None)] * len(pipes)
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes and (left := deadline - time.monotonic()) > 0:
        for pipe in wait(list(open_pipes), left):
            rank = open_pipes.pop(pipe)
            try:
                results[rank] = pickle.loads(pipe.recv_bytes())
            except EOFError:
                processes[rank].join(5)
                results[rank] = "died", processes[rank].exitcode
    for process in processes:
        process.join(max(0.0, min(5.0, deadline - time.monotonic())))
        if process.is_alive():
            process.kill()
            process.join()
    return results


def _complaint(rank: int, kind: str, value: Any, folder: Path) -> str:
    log = folder / f"{rank}.log"
    said = log.read_text(errors="replace")[-4000:] if log.exists() else ""
    return f"--- rank {rank} {kind}: {'' if value is None else value}\n{said}"


class _Job(NamedTuple):
    """What is the same for all ranks of one call."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    world_size: int
    timeout: float
    folder: str
    has_group: bool


def _run(job: _Job, rank: int, sender: Connection) -> None:
    log = open(os.path.join(job.folder, f"{rank}.log"), "w", buffering=1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    # The log then shows where a rank hangs.
    faulthandler.dump_traceback_later(max(job.timeout - 2, job.timeout / 2), file=log)
    try:
        with _group(rank, job):
            result = "done", job.function(rank, *job.args)
    except BaseException:
        result = "raised", traceback.format_exc()
    # By value: torch's own reducers leave tensors in this process, which is about to end.
    sender.send_bytes(pickle.dumps(result))
    sender.close()


@contextlib.contextmanager
def _group(rank: int, job: _Job) -> Any:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    if not job.has_group:
        yield
        return
    dist.init_process_group(
        "gloo",
        init_method=f"file://{job.folder}/meeting",
        rank=rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=job.timeout),
    )
    dist.barrier()  # otherwise a fast rank could leave before all have connected
    try:
        yield
    finally:
        dist.destroy_process_group()
