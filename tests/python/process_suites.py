"""The C++ process suites, run on stores in a bucket or in a pool."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import cairn

PROGRAMS = Path(cairn.__file__).parents[2] / "bin"


def suites(rounds: int) -> dict[str, dict[str, str]]:
    """The environment of each program, for a multiple of its rounds. The filter leaves out tests
    that copy or lock files, or stop at an operation on a file."""
    return {
        "kv_kill_test": {"CAIRN_KILL_ROUNDS": str(15 * rounds), "CAIRN_KILL_WITHIN_MS": "1000"},
        "kv_race_test": {"CAIRN_RACE_ROUNDS": str(6 * rounds)},
        "kv_readers_test": {"CAIRN_READERS_CHANGES": str(150 * rounds)},
        "kv_crash_test": {"GTEST_FILTER": "Objects/*"},
        "mesh_ranks_test": {"CAIRN_MESH_ROUNDS": str(rounds), "CAIRN_RANKS_DEADLINE_MS": "3000"},
        "mesh_kills_test": kills_of_ranks(3 * rounds),
        "kv_two_writers_test": {"GTEST_FILTER": "-PausedWriterTest.*:*.ClosedDescriptors*"},
    }


def kills_of_ranks(rounds: int) -> dict[str, str]:
    """The environment of `mesh_kills_test`."""
    return {
        "CAIRN_KILL_ROUNDS": str(rounds),
        "CAIRN_KILL_WITHIN_MS": "300",
        "CAIRN_RANKS_DEADLINE_MS": "3000",
    }


def run_suite(suite: str, place: str, *settings: dict[str, str]) -> None:
    """Runs a program with stores at an address below `place`, and prints what it has counted."""
    environment = {name: value for each in settings for name, value in each.items()}
    run = subprocess.run(
        [PROGRAMS / suite],
        env={**os.environ, **environment, "CAIRN_TEST_STORES": f"{place}/{suite}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert run.returncode == 0, run.stdout[-20_000:]
    print("\n".join(line for line in run.stdout.splitlines() if not line.startswith("[")))
