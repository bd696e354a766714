"""Runs cells in worker processes, and counts the outcomes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import cairn
from cells import Cell

HERE = Path(__file__).resolve().parent
PACKAGES = Path(cairn.__file__).resolve().parents[1]
SIMULATED = PACKAGES.with_name("python-simulated")
_CELLS_PER_JOB = 120


class Outcome(NamedTuple):
    cell: Cell
    status: str
    text: str
    seconds: float


def has_simulated_cuda() -> bool:
    return (SIMULATED / "cairn" / "__init__.py").exists()


def run(
    cells: list[Cell], folder: Path, environment: dict[str, str], places: dict[str, str],
    deadline: float = 600.0,
) -> list[Outcome]:  # fmt: skip
    """Runs all cells, on as many workers at a time as there are processors.

    Args:
        environment: variables for the workers.
        places: by the kind of storage, the address below which the stores are created.
        deadline: seconds after which a cell hangs.
    """
    jobs: queue.SimpleQueue[list[Cell]] = queue.SimpleQueue()
    for payloads in _groups(cells):
        for first in range(0, len(payloads), _CELLS_PER_JOB):
            jobs.put(payloads[first : first + _CELLS_PER_JOB])
    outcomes: list[Outcome] = []

    def work() -> None:
        while True:
            try:
                job = jobs.get_nowait()
            except queue.Empty:
                return
            outcomes.extend(_run_job(job, folder, environment, places, deadline))

    threads = [threading.Thread(target=work) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def _groups(cells: list[Cell]) -> list[list[Cell]]:
    """Cells that one worker can run: of one package and one number of ranks, the slowest first."""
    kinds = ("4 ranks", "2 ranks", "cuda")
    groups = [[cell for cell in cells if cell.payload == kind] for kind in kinds]
    return [*groups, [cell for cell in cells if cell.payload not in kinds]]


def _run_job(
    job: list[Cell], folder: Path, environment: dict[str, str], places: dict[str, str],
    deadline: float,
) -> list[Outcome]:  # fmt: skip
    is_cuda = job[0].payload == "cuda"
    paths = [SIMULATED if is_cuda else PACKAGES, HERE.parent / "python"]
    paths.append(HERE.parent / "python" / "simulated_cuda")
    wanted = {"cells": job, "folder": str(folder), "places": places, "deadline": deadline}
    worker = subprocess.Popen(
        [sys.executable, HERE / "worker.py"],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    outcomes = []
    with worker:
        worker.stdin.write(json.dumps(wanted))
        worker.stdin.close()
        for line in worker.stdout:
            cell, *outcome = json.loads(line)
            outcomes.append(Outcome(Cell(*cell), *outcome))
            _log(line)
    return outcomes + [Outcome(cell, "not run", "", 0.0) for cell in job[len(outcomes) :]]


def _log(line: str) -> None:
    """Appends an outcome to the file in CAIRN_MATRIX_RESULTS, where a long run can be followed."""
    if path := os.environ.get("CAIRN_MATRIX_RESULTS"):
        with open(path, "a") as results:
            results.write(line)


def run_and_check(
    cells: list[Cell], folder: Path, environment: dict[str, str], places: dict[str, str]
) -> None:
    """Runs cells, prints how many worked and were refused, and asserts that there are no others.
    Without a CUDA toolkit there is no simulated runtime, and its cells are left out."""
    wanted = [cell for cell in cells if cell.payload != "cuda" or has_simulated_cuda()]
    outcomes = run(wanted, folder, environment, places)
    assert len(outcomes) == len(wanted), "a worker did not start"
    text = summary(outcomes)
    print(text.splitlines()[0], f"{len(cells) - len(wanted)} left out (no CUDA toolkit)")
    assert all(each.status in ("works", "refused") for each in outcomes), text


def summary(outcomes: list[Outcome]) -> str:
    """The counts, and each cell that neither works nor is refused as the table states."""
    counts = Counter(outcome.status for outcome in outcomes)
    bad = [each for each in outcomes if each.status not in ("works", "refused")]
    texts = [f"--- {each.status}: {each.cell}\n{each.text}" for each in bad]
    head = f"{len(outcomes)} cells: " + ", ".join(f"{n} {status}" for status, n in counts.items())
    return "\n".join([head, *texts])
