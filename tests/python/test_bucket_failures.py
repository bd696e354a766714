"""Stores in a bucket of a real S3 server while processes and the server itself are killed.

CAIRN_SERVER_KILLS (3) is the number of times that the server is killed; CAIRN_BUCKET_ROUNDS (1)
multiplies the rounds of the C++ process suites; CAIRN_KILL_ROUNDS (6) is the number of rounds in
which ranks and the server are killed.
"""

from __future__ import annotations

import os

import pytest
from process_suites import kills_of_ranks, run_suite, suites
from s3_server import SEAWEED, folder, server  # noqa: F401 - fixtures

ROUNDS = int(os.environ.get("CAIRN_BUCKET_ROUNDS", "1"))
KILL_ROUNDS = int(os.environ.get("CAIRN_KILL_ROUNDS", "6"))

SUITES = suites(ROUNDS)


@pytest.mark.timeout(300 + 120 * ROUNDS)
@pytest.mark.parametrize(
    "suite",
    [
        pytest.param(suite, marks=[pytest.mark.slow] if suite == "kv_object_crash_test" else [])
        for suite in SUITES
    ],
)
def test_process_suite_passes(server, suite):
    run_suite(suite, bucket(server), server, SUITES[suite])


def bucket(server: dict[str, str]) -> str:
    return f"s3://{server['CAIRN_TEST_S3_BUCKET']}"


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILL_ROUNDS)
def test_every_acknowledged_step_survives_kills_of_ranks_and_of_the_server(folder, server):
    settings = {
        **kills_of_ranks(KILL_ROUNDS),
        "CAIRN_S3_TIMEOUT": "10",
        "CAIRN_TEST_SERVER_KILL": f"{SEAWEED} kill {folder} >&2",
        "CAIRN_TEST_SERVER_RESTART": f"{SEAWEED} restart {folder} >&2",
    }
    run_suite("mesh_kills_test", bucket(server), server, settings)
