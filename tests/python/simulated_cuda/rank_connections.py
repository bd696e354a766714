"""Helpers of the multi-rank cases."""

from __future__ import annotations

import gc

import pytest
import torch
from device_memory import control
from thread_ranks import TIMEOUT

import cairn.state_dict

SMALL = 64 << 10
"""Upper bound of the bytes that control messages move over the bus."""


@pytest.fixture(autouse=True)
def nccl_is_used(monkeypatch):
    """With patience, and nothing is left of it."""
    monkeypatch.setattr(cairn.state_dict, "TIMEOUT", TIMEOUT)
    monkeypatch.setenv("CAIRN_NCCL", "on")
    yield
    assert control.NcclCommunicators() == 0
    gc.collect()  # later it might wait for a stream that a test keeps busy


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
