"""Every operation on every storage with every kind of payload: works, or is refused as
docs/matrix.md states. No cell crashes, hangs, or loses a step."""

from __future__ import annotations

import os
from pathlib import Path

import cells
import pytest
from matrix_run import run_and_check
from s3_server import folder, server  # noqa: F401 - fixtures


def _run(some: list[cells.Cell], server: dict[str, str], tmp_path: Path) -> None:
    only = os.environ.get("CAIRN_MATRIX_ONLY", "")
    some = [cell for cell in some if all(word in str(cell) for word in only.split(","))]
    run_and_check(some, tmp_path, server, {"s3": f"s3://{server['CAIRN_TEST_S3_BUCKET']}"})


def test_the_page_names_each_operation_and_only_known_values():
    page, known = cells.PAGE.read_text(), cells.dimensions()
    assert all(f"*{name}*" in page for name in known["operation"])
    for refusal in cells.refusals():
        assert all(set(values) <= set(known[name]) for name, values in refusal.where.items())


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", ["first half", "second half", "cuda"])
def test_all_pairs(server, tmp_path, part):
    """Three tests, so that they can run at the same time."""
    pairs = cells.all_pairs()
    with_cuda = [cell for cell in pairs if cell.payload == "cuda"]
    others = [cell for cell in pairs if cell.payload != "cuda"]
    parts = {"first half": others[::2], "second half": others[1::2], "cuda": with_cuda}
    _run(parts[part], server, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_all_cells(server, tmp_path):
    _run(cells.all_cells(), server, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_all_pairs_under_one_fault(server, tmp_path):
    _run(cells.with_faults(cells.all_pairs()), server, tmp_path)
