"""Runs cells in processes that may crash or hang: `python worker.py`, with a job as JSON on stdin.

This process imports everything and then only forks: a group of as many processes as the cells have
ranks, which runs one cell after the other. If one of them fails, dies, or exceeds the deadline, the
group is ended, that cell is reported, and a new group continues with the next cell. Each result is
a line of JSON on stdout.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cells
import torch
import torch.distributed as dist
from trial import ProgramError, Trial

import cairn
import cairn._load.stream  # now, because an import needs file descriptors
import cairn.reports


def main() -> None:
    job = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w", buffering=1)
    todo = [cells.Cell(*fields) for fields in job["cells"]]
    done = 0
    while done < len(todo):
        with tempfile.TemporaryDirectory(prefix="matrix-", dir=job["folder"]) as folder:
            for cell, outcome in _run_group(todo[done:], job, Path(folder)):
                print(json.dumps([cell, *outcome]), file=results)
                done += 1


def _run_group(todo: list[cells.Cell], job: dict[str, Any], folder: Path) -> Any:
    """Yields cells with their outcomes, until all are done or one has failed."""
    receiver, sender = Pipe(duplex=False)
    world_size = cells.world_size(todo[0].payload)
    processes = []
    for rank in range(world_size):
        process = os.fork()
        if process == 0:
            receiver.close()
            _Rank(rank, world_size, folder, job, sender).run(todo)
        processes.append(process)
    sender.close()
    for cell in todo:
        begin = time.monotonic()
        status, text = _next_outcome(receiver, job["deadline"])
        is_broken = status not in ("works", "refused")
        if is_broken:
            text += _end(processes, grace=0.0 if status == "hung" else 5.0)
            text += "".join(log.read_text()[:3000] for log in sorted(folder.glob("*.log")))
        yield cell, (status, text, round(time.monotonic() - begin, 3))
        if is_broken:
            return
    _end(processes, grace=10.0)


def _next_outcome(receiver: Connection, seconds: float) -> tuple[str, str]:
    try:
        return receiver.recv() if receiver.poll(seconds) else ("hung", "")
    except EOFError:
        return "crashed", ""


def _end(processes: list[int], grace: float) -> str:
    """Ends the processes, and states which of them had died by a signal."""
    deadline, died = time.monotonic() + grace, ""
    for rank, process in enumerate(processes):
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                if os.WIFSIGNALED(status):
                    died += f"rank {rank}: {signal.Signals(os.WTERMSIG(status)).name}\n"
                elif os.waitstatus_to_exitcode(status):
                    died += f"rank {rank}: exit status {os.waitstatus_to_exitcode(status)}\n"
                break
            if time.monotonic() > deadline:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                break
            time.sleep(0.01)
    return died


class _Rank:
    def __init__(self, rank: int, world_size: int, folder: Path, job: Any, sender: Any) -> None:
        self._rank, self._world_size, self._folder = rank, world_size, folder
        self._job, self._sender = job, sender
        self._refusals = cells.refusals()

    def run(self, todo: list[cells.Cell]) -> None:
        log = open(self._folder / f"{self._rank}.log", "w", buffering=1)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        faulthandler.enable(log, all_threads=False)
        if self._rank > 0:
            self._sender.close()  # so that the end of rank 0 is noticed
        try:
            self._start(todo[0].payload)
            for cell in todo:
                faulthandler.dump_traceback_later(self._job["deadline"] * 0.8, file=log)
                status, text = self._outcome(cell)
                if self._rank == 0:
                    self._sender.send((status, text))
                if status not in ("works", "refused"):
                    break
        except BaseException:
            traceback.print_exc(file=log)
            os._exit(3)
        os._exit(0)

    def _start(self, payload: str) -> None:
        torch.set_num_threads(1)
        if payload == "cuda":
            import pytest
            import simulated_machine

            simulated_machine.start()
            simulated_machine.use_streams(pytest.MonkeyPatch())
        if self._world_size > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{self._folder}/meeting", rank=self._rank,
                world_size=self._world_size, timeout=timedelta(seconds=self._job["deadline"]),
            )  # fmt: skip

    def _outcome(self, cell: cells.Cell) -> tuple[str, str]:
        outcome = self._own_outcome(cell)
        if self._world_size == 1:
            return outcome
        outcomes: list[Any] = [None] * self._world_size
        dist.all_gather_object(outcomes, outcome)
        order = ("works", "refused", "failed")
        return max(outcomes, key=lambda each: order.index(each[0]))

    def _own_outcome(self, cell: cells.Cell) -> tuple[str, str]:
        trial = Trial(cell, self._rank, self._folder, self._job["places"])
        stated = [refusal for refusal in self._refusals if refusal.concerns(cell)]
        try:
            trial.run()
        except (cairn.Error, ProgramError) as error:
            kind = "status 2" if isinstance(error, ProgramError) else type(error).__name__
            if any(refusal.accepts(kind, str(error)) for refusal in stated):
                return "refused", f"{kind}: {error}"
            return "failed", f"{kind}: {error}\n{traceback.format_exc()}"
        except BaseException:
            return "failed", traceback.format_exc()
        if stated:
            return "failed", f"it works, but docs/matrix.md states that it is refused: {stated}"
        return "works", trial.raised


if __name__ == "__main__":
    main()
