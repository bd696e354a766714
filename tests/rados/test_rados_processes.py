"""The C++ process suites on stores in a pool of a real Ceph cluster.

CAIRN_RADOS_ROUNDS (1) multiplies their rounds; CAIRN_KILL_ROUNDS (6) is the number of rounds in
which ranks and an OSD are killed.
"""

from __future__ import annotations

import os
import pathlib

import pytest
from process_suites import kills_of_ranks, run_suite, suites

CEPH = pathlib.Path(__file__).resolve().parents[2] / "tests/support/ceph.sh"
ROUNDS = int(os.environ.get("CAIRN_RADOS_ROUNDS", "1"))
KILL_ROUNDS = int(os.environ.get("CAIRN_KILL_ROUNDS", "6"))

pytestmark = pytest.mark.ceph

SUITES = suites(ROUNDS)


def pool(environment: dict[str, str]) -> str:
    return f"rados:{environment['CAIRN_TEST_CEPH_POOL']}"


@pytest.mark.timeout(600 + 120 * ROUNDS)
@pytest.mark.parametrize("suite", SUITES)
def test_process_suite_passes(cluster, suite):
    run_suite(suite, pool(cluster[1]), cluster[1], SUITES[suite])


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILL_ROUNDS)
def test_every_acknowledged_step_survives_kills_of_ranks_and_of_an_osd(cluster):
    folder, environment = cluster
    settings = {
        **kills_of_ranks(KILL_ROUNDS),
        "CAIRN_RADOS_TIMEOUT": "30",
        "CAIRN_TEST_SERVER_KILL": f"{CEPH} kill {folder} 1 >&2",
        "CAIRN_TEST_SERVER_RESTART": f"{CEPH} revive {folder} 1 >&2",
    }
    run_suite("mesh_kills_test", pool(environment), environment, settings)
