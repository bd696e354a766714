"""Mirrors in a bucket of a real S3 server, on several ranks, and of a job that is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cairn_testing import assert_same
from interpreters import Program
from ranks import run_on_ranks
from s3_server import bucket, folder, server  # noqa: F401 - fixtures
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn
from cairn import Mirror
from cairn.torch import Saver

KV_DUMP = Path(cairn.__file__).parents[2] / "bin/kv-dump"

STATE = """
import numpy

def state_of(step):
    rng = numpy.random.default_rng(step)
    return {"always": rng.integers(0, 255, 300_001, dtype=numpy.uint8),
            "never": numpy.arange(100_000), "step": step}
"""

# Saves every step, keeps two of them, and mirrors the even ones. Prints what it resumes from, each
# step that is durable, and each that the mirror has.
JOB = (
    STATE
    + """
import os, sys, cairn
from cairn import Mirror
from cairn.torch import Saver

def show(word, step):
    os.write(1, f"{word} {step}\\n".encode())  # two threads write

store = cairn.open(sys.argv[1], mode="a", grace=0)
store.observe(
    lambda event: event.kind == "mirror" and not event.error and show("copied", event.step))
mirror = Mirror(sys.argv[2], every=2, max_pending=10_000)
saver = Saver(store, every=1, keep_last=2, async_=False, mirror=mirror, signals=())
state = state_of(0)
step = saver.resume(state) or 0
assert state["step"] == step
show("resumed", step)
while True:
    step += 1
    saver.step(step, state_of(step))
    show("durable", step)
"""
)


def verify(address) -> None:
    result = subprocess.run([KV_DUMP, "verify", str(address)], capture_output=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def contents(address) -> set[int]:
    """The steps of a store that a job has written, each of which is compared."""
    names: dict = {"numpy": np}
    exec(STATE, names)
    try:
        with cairn.open(address) as store:
            for step in store.steps():
                assert_same(store.read(step=step), names["state_of"](step))
            return set(store.steps())
    except cairn.NotFound:
        return set()


def kill_a_job_many_times(path: Path, mirror: str, rounds: int) -> None:
    rng = random.Random(int(os.environ.get("CAIRN_KILL_SEED", "1")))
    local: set[int] = set()
    mirrored: set[int] = set()
    durable: set[int] = set()  # in the local store
    kept: set[int] = set()  # in the mirror when the local store was lost
    copied: set[int] = set()  # to the mirror
    for one in range(rounds):
        job = Program(["-c", JOB, str(path), mirror])
        line = job.stdout.readline()
        assert line, job.communicate()
        word, resumed = line.split()
        assert word == "resumed" and int(resumed) == max(local | mirrored, default=0)
        # The job is killed after it has printed a number of words; every other time, of copies.
        last = "copied" if one % 2 else rng.choice(["durable", "resumed"])
        left = rng.randint(1, 4) if last != "resumed" else 0
        lines = []
        while left > 0:
            lines.append(job.stdout.readline())
            assert lines[-1], job.communicate()
            left -= lines[-1].startswith(last)
        time.sleep(rng.uniform(0, 0.03))  # anywhere in a save; what follows is true at each moment
        assert job.poll() is None, "the job ended by itself"
        job.send_signal(signal.SIGKILL)
        lines += job.stdout.read().splitlines(keepends=True)
        job.wait()
        found = [line.split() for line in lines if line.endswith("\n")]
        durable |= {int(step) for word, step in found if word == "durable"}
        copied |= {int(step) for word, step in found if word == "copied"}

        local, mirrored = contents(path), contents(mirror)
        assert max(durable, default=0) <= max(local, default=0)
        assert copied <= mirrored and all(step % 2 == 0 for step in mirrored)
        # An even step is deleted only after it is in the mirror.
        assert {step for step in durable | kept if step % 2 == 0} <= local | mirrored
        if rng.random() < 0.3:  # the next job starts on a machine without the local store
            shutil.rmtree(path)
            local, durable, kept = set(), set(), set(mirrored)
    assert len(copied) >= rounds // 2
    verify(mirror)


@pytest.mark.timeout(300)
def test_a_killed_job_loses_no_step_and_continues_its_mirror(path, tmp_path):
    rounds = int(os.environ.get("CAIRN_KILL_ROUNDS", "4"))
    kill_a_job_many_times(path, str(tmp_path / "mirror"), rounds)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_job_loses_no_step_and_continues_its_mirror_in_a_bucket(path, bucket):
    kill_a_job_many_times(path, bucket, int(os.environ.get("CAIRN_KILL_ROUNDS", "20")))


def sharded(step: int) -> dict:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(12.0).reshape(6, 2) + step
    return {"d": distribute_tensor(whole, mesh, [Shard(0)]), "step": step}


def train(rank, path, mirror):
    with cairn.open(path, mode="a", timeout=60, grace=0) as store:
        with Saver(store, every=1, keep_last=1, mirror=mirror, mirror_every=2) as saver:
            state = sharded(0)
            done = saver.resume(state) or 0
            assert state["step"] == done
            assert torch.equal(
                state["d"].full_tensor(), torch.arange(12.0).reshape(6, 2) + done
            )
            for step in range(done + 1, done + 5):
                saver.step(step, lambda: sharded(step))
            copies = store.save_async(done + 5, sharded(done + 5), mirror=mirror)
            copies.mirrored(60)
        return done, store.steps(), len(store.mirror_status())


def test_ranks_mirror_their_steps_and_resume_from_the_mirror(path, tmp_path):
    mirror = tmp_path / "mirror"
    assert run_on_ranks(train, path, mirror) == [(0, [4, 5], 1)] + [(0, [4, 5], 0)] * 3
    with cairn.open(mirror) as store:
        assert store.steps() == [2, 4, 5]
    shutil.rmtree(path)
    assert [one[0] for one in run_on_ranks(train, path, mirror, world_size=3)] == [5] * 3
    verify(path)
    verify(mirror)


def fail_to_mirror(rank, path, mirror):
    with cairn.open(path, mode="a", timeout=60) as store:
        try:
            with Saver(store, every=1, mirror=Mirror(mirror, timeout=0.1)) as saver:
                saver.step(1, sharded(1))
        except cairn.Error as error:
            return type(error).__name__, store.steps()


def test_a_mirror_that_fails_fails_the_close_on_all_ranks(path, tmp_path):
    with cairn.open(tmp_path / "mirror", mode="a"):  # another job has it
        outcome = run_on_ranks(fail_to_mirror, path, tmp_path / "mirror", world_size=2)
    assert outcome == [("Conflict", [1])] * 2
