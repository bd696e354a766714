"""The C++ process suites on stores in a pool of a real Ceph cluster.

CAIRN_RADOS_ROUNDS (1) multiplies their rounds; CAIRN_KILL_ROUNDS (6) is the number of rounds in
which ranks and an OSD are killed.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import cairn
import pytest

CEPH = pathlib.Path(__file__).resolve().parents[2] / "tests/support/ceph.sh"
PROGRAMS = pathlib.Path(cairn.__file__).resolve().parents[2] / "bin"
ROUNDS = int(os.environ.get("CAIRN_RADOS_ROUNDS", "1"))
KILL_ROUNDS = int(os.environ.get("CAIRN_KILL_ROUNDS", "6"))

pytestmark = pytest.mark.ceph

# The filters leave out tests that copy or lock files, or stop at an operation on a file.
SUITES = {
    "kv_kill_test": {"CAIRN_KILL_ROUNDS": str(15 * ROUNDS), "CAIRN_KILL_WITHIN_MS": "1000"},
    "kv_race_test": {"CAIRN_RACE_ROUNDS": str(6 * ROUNDS)},
    "kv_readers_test": {"CAIRN_READERS_SECONDS": str(3 * ROUNDS)},
    "kv_two_writers_test": {"GTEST_FILTER": "-PausedWriterTest.*:*.ClosedDescriptors*"},
    "kv_object_crash_test": {},
    "mesh_ranks_test": {"CAIRN_MESH_ROUNDS": str(ROUNDS), "CAIRN_RANKS_DEADLINE_MS": "3000"},
    "mesh_kills_test": {
        "CAIRN_KILL_ROUNDS": str(3 * ROUNDS),
        "CAIRN_KILL_WITHIN_MS": "300",
        "CAIRN_RANKS_DEADLINE_MS": "3000",
    },
}


def run_suite(suite: str, environment: dict[str, str], settings: dict[str, str]) -> None:
    """Runs a C++ test program with stores in the pool, and prints what it has counted."""
    stores = f"rados:{environment['CAIRN_TEST_CEPH_POOL']}/{suite}"
    run = subprocess.run(
        [PROGRAMS / suite],
        env={**os.environ, **environment, **settings, "CAIRN_TEST_STORES": stores},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert run.returncode == 0, run.stdout[-20_000:]
    print("\n".join(line for line in run.stdout.splitlines() if not line.startswith("[")))


@pytest.mark.timeout(600 + 120 * ROUNDS)
@pytest.mark.parametrize("suite", SUITES)
def test_process_suite_passes(cluster, suite):
    run_suite(suite, cluster[1], SUITES[suite])


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILL_ROUNDS)
def test_every_acknowledged_step_survives_kills_of_ranks_and_of_an_osd(cluster):
    folder, environment = cluster
    settings = {
        "CAIRN_KILL_ROUNDS": str(KILL_ROUNDS),
        "CAIRN_KILL_WITHIN_MS": "300",
        "CAIRN_RANKS_DEADLINE_MS": "3000",
        "CAIRN_RADOS_TIMEOUT": "30",
        "CAIRN_TEST_SERVER_KILL": f"{CEPH} kill {folder} 1 >&2",
        "CAIRN_TEST_SERVER_RESTART": f"{CEPH} revive {folder} 1 >&2",
    }
    run_suite("mesh_kills_test", environment, settings)
