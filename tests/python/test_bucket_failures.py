"""Stores in a bucket of a real S3 server while processes and the server itself are killed.

CAIRN_SERVER_KILLS (3) is the number of times that the server is killed; CAIRN_BUCKET_ROUNDS (1)
multiplies the rounds of the C++ process suites; CAIRN_KILL_ROUNDS (6) is the number of rounds in
which ranks and the server are killed.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time

import cairn
import pytest
import torch
from process_suites import PROGRAMS, kills_of_ranks, run_suite, suites
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


def make_state(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {f"layer{i}": torch.randn(200, 300, generator=generator) for i in range(20)}


class Trainer(threading.Thread):
    """Saves one step after another; opens the store again after an error."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address
        self.acknowledged: list[int] = []
        self.errors: list[cairn.Error] = []
        self.stop = threading.Event()

    def run(self) -> None:
        step = 0
        while not self.stop.is_set():
            try:
                with cairn.open(self.address, mode="a", take_over=True) as store:
                    while not self.stop.is_set():
                        step += 1
                        store.save(step, make_state(step))
                        self.acknowledged.append(step)
            except cairn.Error as error:
                self.errors.append(error)


@pytest.mark.slow
@pytest.mark.timeout(600 + 30 * int(os.environ.get("CAIRN_SERVER_KILLS", "3")))
@pytest.mark.parametrize("timeout_s", [60, 1])
def test_every_acknowledged_step_survives_kills_of_the_server(
    folder, server, monkeypatch, timeout_s
):
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CAIRN_S3_TIMEOUT", str(timeout_s))
    address = f"s3://{os.environ['CAIRN_TEST_S3_BUCKET']}/killed-{timeout_s}"
    trainer = Trainer(address)
    trainer.start()
    try:
        for _ in range(int(os.environ.get("CAIRN_SERVER_KILLS", "3"))):
            time.sleep(random.uniform(0.2, 1.5))
            subprocess.run([SEAWEED, "kill", folder], check=True, timeout=60)
            time.sleep(random.uniform(1, 3))
            subprocess.run([SEAWEED, "restart", folder], check=True, timeout=120)
        before = len(trainer.acknowledged)
        deadline = time.monotonic() + 90
        while len(trainer.acknowledged) < before + 3 and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        trainer.stop.set()
        trainer.join(timeout=120)
    assert len(trainer.acknowledged) >= before + 3, f"no saves any more: {trainer.errors[-1:]}"
    # A request is repeated until its deadline, so a long one hides the kills.
    assert bool(trainer.errors) == (timeout_s < 60), trainer.errors
    with cairn.open(address) as store:
        steps = store.steps()
        assert set(trainer.acknowledged) <= set(steps)
        for step in steps:
            found = store.read(step=step)
            assert all(torch.equal(found[key], value) for key, value in make_state(step).items())
    verified = subprocess.run(
        [PROGRAMS / "kv-dump", "verify", address], capture_output=True, text=True, timeout=120
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
    print(f"{len(trainer.acknowledged)} acknowledged saves, {len(trainer.errors)} errors")
