"""Many saves and loads of a small state in one process, through torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compare_lib.peers.base import Steps
from compare_lib.states import State

TIMES = 100


def save_and_load(
    state: State,
    writer: Callable[[int], Any],
    reader: Callable[[int], Any],
    saved: Callable[[int], None] = lambda number: None,
) -> Steps:
    """Saves the state under each number, as `saved` makes durable, and loads it; see base.py."""
    import torch
    import torch.distributed.checkpoint as dcp

    targets = {key: torch.zeros_like(tensor) for key, tensor in state.tensors.items()}
    yield
    for number in range(TIMES):
        state.change(list(state.tensors))
        dcp.save(state.tensors, storage_writer=writer(number), no_dist=True)
        saved(number)
        dcp.load(targets, storage_reader=reader(number), no_dist=True)
        for key, tensor in state.tensors.items():
            if not torch.equal(targets[key].view(torch.uint8), tensor.view(torch.uint8)):
                raise AssertionError(f"loaded something else than was saved: {key}")
    yield None
