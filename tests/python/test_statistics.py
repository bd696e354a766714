"""Statistics that a save records, against torch, and the compression that is set for a store."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed.checkpoint as dcp

import cairn
from cairn import NotFound
from cairn.dcp import CairnWriter
from cairn.torch import Saver


def state_of(seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(700, 900, generator=generator)
    weight[3, 4] = 0
    return {
        "bf16": weight.to(torch.bfloat16),
        "half": weight.to(torch.float16),
        "float": weight,
        "view": weight.t(),
        "integers": torch.arange(-5, 1000),
        "flags": weight > 1,
        "float8": weight[:5].to(torch.float8_e4m3fn),
        "complex": torch.complex(weight[0], weight[1]),
        "empty": torch.zeros(0),
    }


def assert_statistics(found: cairn.TensorStatistics, tensor: torch.Tensor) -> None:
    values = (tensor.abs() if tensor.is_complex() else tensor).to(torch.float64).flatten()
    numbers, finite = values[~values.isnan()], values[values.isfinite()]
    assert (found.count, found.zeros) == (values.numel(), (values == 0).sum().item())
    assert (found.nans, found.infs) == (values.isnan().sum().item(), values.isinf().sum().item())
    assert found.min == pytest.approx(numbers.min().item(), rel=1e-6)
    assert found.max == pytest.approx(numbers.max().item(), rel=1e-6)
    assert found.mean == pytest.approx(finite.mean().item(), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("is_async", [False, True])
def test_statistics_are_those_of_torch(store, is_async):
    state = state_of(1)
    state["float"][100, 100] = math.nan
    state["bf16"][200, 200] = -math.inf
    tuning = cairn.SaveTuning(statistics=True, chunk_bytes=1 << 17)
    if is_async:
        store.save_async(1, state, tuning=tuning).result()
    else:
        store.save(1, state, tuning=tuning)
    found = store.statistics()
    assert set(found) == set(state) - {"empty", "view"}  # "view" shares the bytes of "float"
    for name, statistics in found.items():
        assert_statistics(statistics, state[name])
    assert found["bf16"].abs_max == math.inf
    assert set(store.statistics(1, "float*")) == {"float", "float8"}
    with pytest.raises(NotFound):
        store.statistics(2)


def weights_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"w": (torch.randn(600, 900, generator=generator) * 0.02).to(torch.bfloat16)}


def test_the_setting_of_a_store_applies_to_all_saves(path):
    state = weights_of(1)
    with cairn.open(path, mode="a") as store:
        assert store.compression() is False
        store.set_compression(True)
        assert store.compression() is True
        store.save(1, state, tuning=cairn.SaveTuning(incremental=False))
        store.save_async(2, state, tuning=cairn.SaveTuning(incremental=False)).result()
        store.save(3, state, tuning=cairn.SaveTuning(incremental=False, compress=False))
        with Saver(store, every=1, signals=()) as saver:
            saver.step(4, weights_of(4))
    dcp.save(state, storage_writer=CairnWriter(path, step=5), no_dist=True)
    with cairn.open(path, mode="a") as store:
        store.save(6, weights_of(6))
        store.set_compression(False)
        store.save(7, weights_of(7))
    with cairn.open(path) as reader:
        with pytest.raises(cairn.Invalid, match="open it for writing"):
            reader.set_compression(False)
        assert torch.equal(reader.read("w", step=5)["w"], state["w"])
        written = {step: reader.step_info(step).written_bytes for step in reader.steps()}
    nbytes = state["w"].nbytes
    assert {step for step in written if 0 < written[step] < 0.9 * nbytes} == {1, 2, 4, 5, 6}
    assert written[3] == written[7] == nbytes
