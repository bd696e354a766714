"""Saves with deltas: a bf16 fine-tune whose steps are loaded, read in part, and pulled."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import cairn
import pytest
import torch
from cairn.torch import Saver
from cairn_testing import assert_same

KV_DUMP = Path(cairn.__file__).parents[2] / "bin/kv-dump"

ROWS, COLUMNS = 1024, 2048  # 4 MiB in bf16: one chunk


class FineTune:
    """A bf16 model whose fp32 masters are updated, so that few of its elements change per step."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self._masters = {
            name: torch.randn(ROWS, COLUMNS, generator=generator) * 0.02 for name in ("a", "b")
        }
        self._generator = generator
        self.model = {name: master.bfloat16() for name, master in self._masters.items()}

    def train(self, rate: float = 1e-6) -> None:
        for name, master in self._masters.items():
            update = torch.randn(ROWS, COLUMNS, generator=self._generator).clamp(-1, 1)
            master.add_(update, alpha=-rate)
            self.model[name].copy_(master)

    def copy(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.items()}


def kv_dump(*arguments: object) -> str:
    command = [KV_DUMP, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("asynchronous", [False, True])
def test_steps_of_a_fine_tune_take_little_space(tmp_path, asynchronous):
    run = FineTune()
    states = {}
    written = []
    with cairn.open(tmp_path / "s", mode="a") as store:
        for step in range(7):
            if asynchronous:
                report = store.save_async(step, run.model, deltas=True).result()
            else:
                report = store.save(step, run.model, deltas=True)
            states[step] = run.copy()
            written.append(report.written_bytes)
            run.train()
        full = written[0]
        assert written[5] == full, "the fifth delta of a chunk is not written"
        assert all(bytes_ < full / 10 for bytes_ in written[1:5] + written[6:]), written
        for step, state in states.items():
            assert_same(store.read(step=step), state)
    with cairn.open(tmp_path / "s") as store:
        for step, state in states.items():
            assert_same(store.read(step=step), state)
    kv_dump("verify", tmp_path / "s")


def test_a_saver_writes_deltas(tmp_path):
    run = FineTune()
    path = tmp_path / "s"
    with cairn.open(path, mode="a") as store:
        saver = Saver(store, every=1, deltas=2, signals=())
        for step in range(1, 5):
            saver.step(step, run.model)
            run.train()
        saver.close()
    encodings = {
        step: {
            chunk["encoding"]
            for chunk in json.loads(kv_dump("chunks", f"{path}@{step}", "--json"))["chunks"]
        }
        for step in range(1, 5)
    }
    assert encodings == {1: {"raw"}, 2: {"delta"}, 3: {"delta"}, 4: {"raw"}}
