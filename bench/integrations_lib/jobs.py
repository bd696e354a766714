"""Runs a job: its ranks are new processes, forked from one that has imported the library."""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from compare_lib.child import run_in_child

from integrations_lib.run import Run

Result = dict[str, Any]
DEADLINE_S = 600.0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _run_rank(work: Callable[[Run], None], run: Run, port: int, answer: Path) -> None:
    if run.ranks > 1:
        os.environ.update(
            RANK=str(run.rank), LOCAL_RANK=str(run.rank), WORLD_SIZE=str(run.ranks),
            LOCAL_WORLD_SIZE=str(run.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
        )  # fmt: skip
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // run.ranks))
    before = set(sys.modules)
    work(run)
    imported = [name for name in sys.modules if name not in before]
    answer.write_text(json.dumps(run.result() | {"imported": imported}))


def _fork_ranks(work: Callable[[Run], None], runs: list[Run], scratch: Path) -> list[Result]:
    """Runs rank 0 in this process, and the others in processes forked from it."""
    port = _free_port()
    answers = [scratch / f"rank-{run.rank}.json" for run in runs]
    for answer in answers:
        answer.unlink(missing_ok=True)
    children = []
    for run in runs[1:]:
        child = os.fork()
        if child == 0:
            try:
                _run_rank(work, run, port, answers[run.rank])
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    _run_rank(work, runs[0], port, answers[0])
    for child in children:
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise RuntimeError("another rank has failed")
    return [json.loads(answer.read_text()) for answer in answers]


def run_job(
    work: Callable[[Run], None], runs: list[Run], scratch: Path
) -> tuple[list[Result], str]:
    """Returns the result of each rank, or no results and the error."""
    log = scratch / "log"
    log.write_text("")
    found = run_in_child(lambda: _fork_ranks(work, runs, scratch), DEADLINE_S, log)
    if found and "error" in found[0]:
        return [], f"{found[0]['error']}\n{log.read_text()[-4000:]}"
    return found, ""
