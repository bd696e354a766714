"""The C++ process suites on two mounts: the test uses one, and its children use both in turn."""

import os
import subprocess

import pytest
from tool_programs import BIN_DIR

# Rounds are fewer than on a local disk: an operation takes milliseconds.
SUITES = {
    "kv_kill_test": {"CAIRN_KILL_ROUNDS": "40", "CAIRN_KILL_WITHIN_MS": "600"},
    "kv_two_writers_test": {},
    "kv_readers_test": {},
    "kv_race_test": {"CAIRN_RACE_ROUNDS": "40"},
    "mesh_ranks_test": {"CAIRN_MESH_ROUNDS": "8", "CAIRN_RANKS_DEADLINE_MS": "5000"},
    "mesh_kills_test": {"CAIRN_KILL_ROUNDS": "10", "CAIRN_RANKS_DEADLINE_MS": "5000"},
}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("suite", SUITES)
def test_passes(nodes, suite):
    environment = {
        **os.environ,
        **SUITES[suite],
        "CAIRN_TEST_DIR": str(nodes[0]),
        "CAIRN_OTHER_TEST_DIR": str(nodes[1]),
        "CAIRN_KEEP_TEMP": "1",
    }
    run = subprocess.run(
        [BIN_DIR / suite], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = run.stdout.decode(errors="replace")
    assert run.returncode == 0, output[-20_000:]
    # The stores were there.
    assert list(nodes[1].glob("cairn-test-*/**/CAIRN")), "no store is on the shared file system"
    print("\n".join(line for line in output.splitlines() if not line.startswith("[")))
