"""``unchanged=``: tensors that a save neither reads nor copies."""

from __future__ import annotations

import cairn
import pytest
import torch
from cairn.torch import Saver


def state() -> dict[str, torch.Tensor]:
    return {
        "base.weight": torch.randn(4, 1 << 20),  # 4 chunks
        "head": torch.randn(1000),
    }


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_base_is_referenced_without_being_read(path, asynchronous):
    with cairn.open(path, mode="a") as store:

        def save(step: int, **options):
            if asynchronous:
                return store.save_async(step, tensors, **options).result()
            return store.save(step, tensors, **options)

        tensors = state()
        before = tensors["base.weight"].clone()
        save(1, unchanged="base")
        tensors["base.weight"][3] += 1  # step 4 compares chunk 0
        tensors["head"] += 1
        assert save(4, unchanged=["base.*"]).written_bytes == tensors["head"].nbytes
        assert torch.equal(store.read("base", step=4)["base.weight"], before)
        assert torch.equal(store.read("head", step=4)["head"], tensors["head"])
        with pytest.raises(cairn.Invalid, match="unchanged") as error:
            save(7, unchanged="base")
        assert error.value.key == "base.weight"
        assert store.steps() == [1, 4]
        save(8)
        assert torch.equal(store.read("base", step=8)["base.weight"], tensors["base.weight"])


def test_every_change_of_the_structure_is_saved(path):
    base, head = torch.randn(4, 1000), torch.randn(100)
    states = [
        {"base": base, "head": head, "step": 1},
        {"base": base, "head": head, "step": 2},
        {"base": base, "head": head, "step": 2.0},
        {"base": base, "head": head, "lr": 2.0},
        {"base": base, "head": head, "lr": {"a": [1, None]}},
        {"base": base, "head": head, "lr": {"a": (1, None)}},
        {"base": base, "head": head, "lr": {"a": (1, base[1])}},
        {"base": base, "tail": head, "lr": {"a": (1, base[1])}},
        {"base": base, "tail": head.view(10, 10), "lr": {"a": (1, base[2])}},
        {"base": base, "tail": head.view(torch.int32), "lr": {"a": (1, base[2])}},
        {"tail": head, "base": base},
        {"tail": head, "base": base, "base2": base},
    ]  # fmt: skip
    with cairn.open(path, mode="a") as store:
        for step, tensors in enumerate([each for each in states for _ in range(2)]):
            head += 1
            store.save_async(step, tensors, unchanged="base").result()
            read = store.read(step=step)
            assert repr(read) == repr(tensors)
            assert list(read) == list(tensors)
            assert store.keys(step).keys() == store.read(step=step, flat=True).keys()


def test_a_saver_passes_it_on(path):
    tensors = state()
    with cairn.open(path, mode="a") as store:
        with Saver(store, every=1, unchanged="base", signals=()) as saver:
            saver.step(1, tensors)
            tensors["base.weight"][3] += 1
            saver.step(4, tensors)
            with pytest.raises(cairn.Invalid, match="unchanged"):
                saver.step(7, tensors)
