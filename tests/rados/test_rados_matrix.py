"""The matrix (tests/matrix/) on stores in a pool of a real Ceph cluster."""

from __future__ import annotations

import pathlib
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "matrix"))

import cells  # noqa: E402
from matrix_run import run_and_check  # noqa: E402

pytestmark = pytest.mark.ceph


def _run(some: list[cells.Cell], cluster, tmp_path: pathlib.Path) -> None:
    environment = cluster[1]
    places = {"rados": f"rados:{environment['CAIRN_TEST_CEPH_POOL']}"}
    run_and_check(some, tmp_path, environment, places)


@pytest.mark.timeout(3600)
def test_all_pairs_in_a_pool(cluster, tmp_path):
    _run(cells.all_pairs(("rados",)), cluster, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(36000)
def test_all_cells_in_a_pool(cluster, tmp_path):
    _run(cells.all_cells(("rados",)), cluster, tmp_path)
