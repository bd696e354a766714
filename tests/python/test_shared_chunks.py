"""Equal chunks under other keys are stored once."""

from __future__ import annotations

import torch

import cairn
from cairn.torch import Saver


def test_copies_and_renamed_tensors_are_stored_once(path):
    weight = torch.randn(1000, 700)
    with cairn.open(path, mode="a") as store:
        first = store.save(1, {"model": weight, "ema": weight.clone()}, share_equal=True)
        assert first.logical_bytes == 2 * weight.nbytes
        assert first.written_bytes == weight.nbytes
        renamed = {"net": weight.clone(), "average": weight.clone()}
        assert store.save_async(2, renamed, share_equal=True).result().written_bytes == 0
        read = store.read(step=2)
        read["net"] += 1  # separate tensors
        assert torch.equal(read["average"], weight)
        with Saver(store, every=1, share_equal=True, signals=()) as saver:
            saver.step(3, {"other": weight})
        assert store.diff(2, 3).changes
        assert torch.equal(store.read("other", step=3)["other"], weight)
        plain = store.save(4, {"again": weight, "ema": weight.clone()})
        assert plain.written_bytes == 2 * weight.nbytes
