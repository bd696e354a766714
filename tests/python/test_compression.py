"""The compression that is set for a store applies to every save into it."""

from __future__ import annotations

import cairn
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnWriter
from cairn.torch import Saver


def state_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"w": (torch.randn(600, 900, generator=generator) * 0.02).to(torch.bfloat16)}


def test_the_setting_of_a_store_applies_to_all_saves(path):
    state = state_of(1)
    with cairn.open(path, mode="a") as store:
        assert store.compression() is False
        store.set_compression(True)
        assert store.compression() is True
        store.save(1, state, tuning=cairn.SaveTuning(incremental=False))
        store.save_async(2, state, tuning=cairn.SaveTuning(incremental=False)).result()
        store.save(3, state, tuning=cairn.SaveTuning(incremental=False, compress=False))
        with Saver(store, every=1, signals=()) as saver:
            saver.step(4, state_of(4))
    dcp.save(state, storage_writer=CairnWriter(path, step=5), no_dist=True)
    with cairn.open(path, mode="a") as store:
        store.save(6, state_of(6))
        store.set_compression(False)
        store.save(7, state_of(7))
    with cairn.open(path) as reader:
        with pytest.raises(cairn.Invalid, match="open it for writing"):
            reader.set_compression(False)
        assert torch.equal(reader.read("w", step=5)["w"], state["w"])
        written = {step: reader.step_info(step).written_bytes for step in reader.steps()}
    nbytes = state["w"].nbytes
    assert {step for step in written if 0 < written[step] < 0.9 * nbytes} == {1, 2, 4, 5, 6}
    assert written[3] == written[7] == nbytes
