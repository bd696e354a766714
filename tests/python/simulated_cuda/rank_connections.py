"""Helpers of the multi-rank cases: each test opens and closes its connections."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from device_memory import control
from thread_ranks import TIMEOUT

import cairn.state_dict as state_dict_collectives

KIB = 1 << 10
SMALL = 64 * KIB
"""Upper bound of the bytes that control messages move over the bus."""


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(state_dict_collectives, "TIMEOUT", TIMEOUT)
    monkeypatch.setenv("CAIRN_NCCL", "on")


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert control.NcclCommunicators() == 0
    gc.collect()  # later it might wait for a stream that a test keeps busy


def with_connections(body):
    """Wraps ``body(rank)``: afterwards, every rank closes its connections."""

    def run(rank):
        try:
            return body(rank)
        finally:
            group = dist.group.WORLD
            ranks = state_dict_collectives._ranks_of_group.pop(group, None)
            if ranks is not None:
                ranks.leave(RuntimeError("the test has ended"))

    return run


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
