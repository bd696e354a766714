"""Four ranks save a tensor in any layout and load it into any other layout."""

from __future__ import annotations

import cairn
import torch
from layouts import assert_same_parts, dcp_takes, layouts
from ranks import run_on_ranks
from storages import NATIVE, Native, Storage

SHAPES = {"uneven": (7, 5), "short": (2, 3), "deep": (8, 4, 2)}


def whole(name: str, layout: str) -> torch.Tensor:
    shape = SHAPES[name]
    first = 1000 * sum(map(ord, layout))
    return torch.arange(first, first + torch.Size(shape).numel()).float().view(shape)


def reshard(rank: int, storage: Storage | Native, path) -> int:
    """Loads every layout into every other one. Returns the number of pairs."""
    made = layouts()
    state = {
        f"{name}.{layout}": held
        for name in SHAPES
        for layout, make in made.items()
        if dcp_takes(held := make(whole(name, layout)))
    }
    storage.save(state, path)
    for target_layout, make in made.items():
        target = {key: make(torch.full(held.shape, -1.0)) for key, held in state.items()}
        storage.load(target, path)
        for key in state:
            want = make(whole(*key.split(".")))
            assert_same_parts(target[key], want, f"{key} to {target_layout}")
    return len(state) * len(made)


def test_every_layout_loads_into_every_other(any_storage, path):
    counts = run_on_ranks(reshard, any_storage, path)
    assert counts[0] > len(SHAPES) * 15 * 15
    if any_storage in NATIVE:  # one process reads the full tensors
        with cairn.open(path) as store:
            for key, got in store.read().items():
                assert torch.equal(got, whole(*key.split("."))), key
