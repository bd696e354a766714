"""Runs cells in processes that may crash or hang, and counts the outcomes.

Groups of cells run on separate ranks (tests/python/ranks.py), which append each outcome to the file
"outcomes". If a rank raises, dies or hangs, that cell has failed, and new ranks run the cells after
it. The cells of the simulated CUDA runtime need another package, and a process that runs this file.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import cairn
import cells
from cells import Cell
from ranks import RanksFailed, run_on_ranks

TESTS = Path(__file__).resolve().parents[1]
PACKAGES = Path(cairn.__file__).parents[1]
SIMULATED = PACKAGES.with_name("python-simulated")
_CELLS_PER_GROUP = 10
_DEADLINE = 900.0
"""Seconds after which a group hangs."""


def run_and_check(
    wanted: list[Cell], folder: Path, environment: dict[str, str], places: dict[str, str]
) -> None:
    """Runs cells, prints how many worked and were refused, and asserts that there are no others.
    Without a CUDA toolkit there is no simulated runtime, and its cells are left out.

    Args:
        environment: variables for the processes.
        places: by the kind of storage, the address below which the stores are created.
    """
    left_out = 0
    (folder / "outcomes").touch()
    for package in (PACKAGES, SIMULATED):
        some = [cell for cell in wanted if (cell.payload == "cuda") == (package == SIMULATED)]
        if package == PACKAGES:
            with mock.patch.dict(os.environ, environment):
                _run_groups(some, folder, places)
        elif not package.exists():
            left_out = len(some)
        elif some:
            folders = map(str, (package, TESTS / "python", TESTS / "python/simulated_cuda"))
            variables = {**environment, "PYTHONPATH": os.pathsep.join(folders)}
            subprocess.run(
                [sys.executable, __file__], input=pickle.dumps((some, folder, places)),
                env={**os.environ, **variables}, check=True,
            )  # fmt: skip
    outcomes = _outcomes(folder)
    counts = Counter(status for status, _ in outcomes.values())
    print(f"{len(outcomes)} cells: {dict(counts)}, {left_out} left out (no CUDA toolkit)")
    assert len(outcomes) + left_out == len(wanted)
    failed = {cell: text for cell, (status, text) in outcomes.items() if status == "failed"}
    assert not failed, "\n".join(f"--- {cell}\n{text}" for cell, text in failed.items())


def _outcomes(folder: Path) -> dict[Cell, list[str]]:
    lines = map(json.loads, (folder / "outcomes").read_text().splitlines())
    return {Cell(*fields): outcome for fields, *outcome in lines}


def _record(folder: Path, cell: Cell, status: str, text: str) -> None:
    with open(folder / "outcomes", "a") as file:
        file.write(json.dumps([cell, status, text]) + "\n")


def _run_groups(some: list[Cell], folder: Path, places: dict[str, str]) -> None:
    running = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for world_size in (4, 1):  # the slower ones first
            todo = [cell for cell in some if cells.world_size(cell.payload) == world_size]
            for first in range(0, len(todo), _CELLS_PER_GROUP):
                group = todo[first : first + _CELLS_PER_GROUP]
                running.append(pool.submit(_run_group, group, world_size, folder, places))
    for each in running:
        each.result()


def _run_group(todo: list[Cell], world_size: int, folder: Path, places: dict[str, str]) -> None:
    while todo:
        with tempfile.TemporaryDirectory(prefix="matrix-", dir=folder) as place:
            args = todo, Path(place), places
            try:
                run_on_ranks(_run_cells, *args, world_size=world_size, timeout=_DEADLINE,
                             has_group=world_size > 1)
                return
            except RanksFailed as error:
                done = _outcomes(folder)
                failed, *todo = [cell for cell in todo if cell not in done]
                _record(folder, failed, "failed", str(error))


def _run_cells(rank: int, todo: list[Cell], folder: Path, places: dict[str, str]) -> None:
    import torch.distributed as dist
    from trial import ProgramError, Trial

    if todo[0].payload == "cuda":
        import pytest
        import simulated_machine

        simulated_machine.start()
        simulated_machine.use_streams(pytest.MonkeyPatch())
    for cell in todo:
        trial = Trial(cell, rank, folder, places)
        stated = [refusal for refusal in cells.refusals() if refusal.concerns(cell)]
        try:
            trial.run()
        except (cairn.Error, ProgramError) as error:
            kind = "status 2" if isinstance(error, ProgramError) else type(error).__name__
            if not any(kind in each.errors and each.text in str(error) for each in stated):
                raise
            status, text = "refused", f"{kind}: {error}"
        else:
            assert not stated, f"it works, but docs/matrix.md states that it is refused: {stated}"
            status, text = "works", trial.raised
        assert trial.on_rank0(lambda: status == "works") == (status == "works"), text
        if dist.is_initialized():
            dist.barrier()
        if rank == 0:
            _record(folder.parent, cell, status, text)


if __name__ == "__main__":
    import matrix_run  # ranks import what they run by the name of its module

    matrix_run._run_groups(*pickle.load(sys.stdin.buffer))
