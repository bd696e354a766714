"""A store in use at full speed: memory, open files, threads and disk space stay flat.

CAIRN_SOAK_STEPS (40) is the number of steps; for more than an hour:

    CAIRN_SOAK_STEPS=20000 .venv/bin/python -m pytest -s tests/python/test_soak.py

A process saves, synchronously and in the background, with and without deltas, compression and
statistics; prunes, compacts, tags, copies to a mirror; and reads in other threads, through the
handle of the writer and through new ones. What the test does with the tensors allocates no large
memory with torch: glibc's heap would be fragmented by it, without the store.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import shutil
import threading
from pathlib import Path

import cairn
import numpy as np
import pytest
import torch
from cairn_testing import wait_until

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
STEPS = int(os.environ.get("CAIRN_SOAK_STEPS", "40"))
KNOWN_STEPS = 200  # the number of steps whose sums are known; a reader reads the newest one


def memory_mib() -> float:
    """Memory of this process that no file backs."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024


def usage() -> dict[str, float]:
    gc.collect()
    return {
        "MiB": memory_mib(),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def sums_of(state: dict[str, torch.Tensor]) -> dict[str, float]:
    return {key: float(np.sum(value.numpy(), dtype=np.float64)) for key, value in state.items()}


class Model:
    """A state of 20 MB that changes a little in each step."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.state = {
            f"layers.{i}": torch.randn(500_000, generator=self.generator) for i in range(8)
        } | {f"small.{i}": torch.randn(100, generator=self.generator) for i in range(200)}
        self.target = {key: torch.empty_like(value) for key, value in self.state.items()}

    def change(self) -> None:
        for i in range(8):
            at = torch.randint(0, 500_000, (2000,), generator=self.generator)
            self.state[f"layers.{i}"][at] += 1e-3
        self.state[f"small.{random.randrange(200)}"] += 1


class Reader(threading.Thread):
    """Reads the latest step again and again, through one handle and through new ones."""

    def __init__(
        self, path: Path, known: dict[int, dict[str, float]], writer: cairn.Store | None
    ) -> None:
        super().__init__()
        self.path, self.known, self.writer = path, known, writer
        self.stop = threading.Event()
        self.reads = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with cairn.open(self.path) as reader:
                store = self.writer or reader
                while not self.stop.is_set():
                    self.read(store)
                    with cairn.open(self.path) as other:
                        self.read(other)
        except BaseException as error:
            self.error = error

    def read(self, store: cairn.Store) -> None:
        steps = store.steps()
        if not steps:
            return
        step = steps[-1]
        try:
            state = store.read(step=step, flat=True)
            assert len(store.keys(step)) == len(state)
            assert len(store.read_slice("layers.0", [(5, 10)], step=step)) == 5
            store.diff(steps[0], step)
        except cairn.NotFound:
            return  # deleted, and its grace period has passed
        assert self.known.get(step) in (sums_of(state), None)
        self.reads += 1


def one_round(store: cairn.Store, model: Model, step: int, known: dict, mirror: Path) -> None:
    model.change()
    known[step] = sums_of(model.state)
    known.pop(step - KNOWN_STEPS, None)  # so that the memory of the test stays flat, too
    tuning = cairn.SaveTuning(
        deltas=4 if step % 3 else 0, statistics=step % 5 == 0, compress=step % 7 == 0
    )
    if step % 2:
        store.save(step, model.state, tuning=tuning)
    else:
        store.save_async(step, model.state, tuning=tuning).result()
    if step % 10 == 0:
        store.tag(step, "best")
        store.prune(keep_last=5)
        store.compact()
    if step % 25 == 0:
        with cairn.open(mirror, mode="a", grace=0) as other:
            cairn.copy_steps(store, other, steps=[step])
            other.prune(keep_last=2)
    for value in model.target.values():
        value.zero_()
    store.load(model.target)
    assert all(torch.equal(model.target[key], model.state[key]) for key in model.state)


@pytest.mark.timeout(1500 + 2 * STEPS)
def test_usage_stays_flat(path, tmp_path):
    # glibc keeps blocks of up to 32 MiB in its heap, whose growth is not Cairn's (reliability.md).
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 256 << 10)
    path = Path(path)
    model, known = Model(), {}
    samples: list[dict[str, float]] = []
    disk: list[int] = []
    with cairn.open(path, mode="a", grace=0.5) as store:
        readers = [Reader(path, known, writer) for writer in (store, None)]
        for reader in readers:
            reader.start()
        try:
            for step in range(1, STEPS + 1):
                one_round(store, model, step, known, tmp_path / "mirror")
                if step % 10 == 0:
                    samples.append(usage())
                    disk.append(sum(f.stat().st_size for f in path.rglob("*") if f.is_file()))
                    if step % 500 == 0:
                        print(step, samples[-1], disk[-1] >> 20, "MiB on disk", flush=True)
            wait_until(lambda: all(reader.reads > 3 or reader.error for reader in readers))
        finally:
            for reader in readers:
                reader.stop.set()
            for reader in readers:
                reader.join()
    shutil.rmtree(tmp_path / "mirror", ignore_errors=True)
    errors = [reader.error for reader in readers if reader.error is not None]
    assert not errors, errors
    # The first quarter warms up pools and caches.
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter + 1], samples[-quarter - 1 :]
    peak = {name: [max(s[name] for s in part) for part in (early, late)] for name in samples[0]}
    print(f"{STEPS} steps, {sum(r.reads for r in readers)} reads by others; "
          f"peaks of the second and the last quarter: {peak}; "
          f"on disk {max(disk) >> 20} MiB at most")
    assert peak["MiB"][1] <= peak["MiB"][0] + max(64, 0.1 * peak["MiB"][0])
    assert peak["files"][1] <= peak["files"][0] + 64  # of at most 64 segments and 64 tables
    assert peak["threads"][1] <= peak["threads"][0] + 8
    assert max(disk[len(disk) // 2 :]) <= 1.5 * max(disk[: len(disk) // 2 + 1])
