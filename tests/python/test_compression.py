"""Compressed chunks: restored exactly, in less space."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cairn
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnWriter
from cairn.torch import Saver

KV_DUMP = Path(cairn.__file__).parents[2] / "bin/kv-dump"


def run_kv_dump(*arguments: object) -> dict:
    command = [KV_DUMP, *map(str, arguments)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return json.loads(ended.stdout)


def state_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(600, 900, generator=generator) * 0.02
    return {
        "bf16": weight.to(torch.bfloat16),
        "half": weight.to(torch.float16),
        "float": weight,
        "view": weight.t(),
        "noise": torch.randint(0, 256, (300_000,), dtype=torch.uint8, generator=generator),
        "zeros": torch.zeros(100_000, dtype=torch.int64),
        "small": torch.ones(3),
    }


def assert_step(store: cairn.Store, step: int, expected: dict[str, torch.Tensor]) -> None:
    read = store.read(step=step)
    for name, tensor in expected.items():
        assert torch.equal(read[name], tensor), (step, name)
    assert torch.equal(store.read_slice("bf16", [(100, 105), (3, 70)], step=step),
                       expected["bf16"][100:105, 3:70])  # fmt: skip


def test_saves_are_smaller_and_exact(path):
    state = state_of(1)
    with cairn.open(path, mode="a") as store:
        report = store.save(1, state, compress=True)
        assert report.written_bytes < 0.75 * report.logical_bytes
        assert_step(store, 1, state)
        state["bf16"][::7, ::7] *= 1.5
        store.save_async(2, state, compress=True, deltas=True).result()
        assert_step(store, 2, state)
        mapped = store.read("bf16", step=2, mmap=True)["bf16"]
        assert torch.equal(mapped, state["bf16"])
        with Saver(store, every=1, compress=True, signals=()) as saver:
            saver.step(3, state_of(3))
        assert_step(store, 3, state_of(3))


def compressed_chunks(path) -> dict[int, int]:
    """The compressed chunks of each step."""
    with cairn.open(path) as store:
        steps = store.steps()
    found = {}
    for step in steps:
        space = run_kv_dump("space", f"{path}@{step}", "--depth", "0", "--json")["space"]
        found[step] = sum(part["compressed_chunks"] for part in space)
    return found


def test_the_setting_of_a_store_applies_to_all_saves(path):
    state = {"w": state_of(1)["bf16"]}
    with cairn.open(path, mode="a") as store:
        assert store.compression() is False
        store.set_compression(True)
        assert store.compression() is True
        store.save(1, state, incremental=False)
        store.save_async(2, state, incremental=False).result()
        store.save(3, state, incremental=False, compress=False)
        with Saver(store, every=1, signals=()) as saver:
            saver.step(4, {"w": state_of(4)["bf16"]})
    dcp.save(state, storage_writer=CairnWriter(path, step=5), no_dist=True)
    script = (
        "import sys, torch, cairn\n"
        "with cairn.open(sys.argv[1], mode='a') as store:\n"
        "    store.save(6, {'w': torch.randn(300_000).to(torch.bfloat16)})\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=120)
    with cairn.open(path) as reader:
        with pytest.raises(cairn.Invalid, match="open it for writing"):
            reader.set_compression(False)
        assert torch.equal(reader.read("w", step=5)["w"], state["w"])
    counts = compressed_chunks(path)
    assert counts[3] == 0
    assert all(counts[step] == 1 for step in (1, 2, 4, 5, 6)), counts
    with cairn.open(path, mode="a") as store:
        store.set_compression(False)
        store.save(7, {"w": state_of(7)["bf16"]})
    assert compressed_chunks(path)[7] == 0
