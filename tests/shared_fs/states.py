"""The state of each step: most of it is new, the rest is that of every other step."""

import torch
from cairn_testing import assert_same


def state_of(step):
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {
            "w": torch.randn(200_000, generator=generator),
            "frozen": torch.arange(100_000),
        },
        "step": step,
    }


def assert_has_step(store, step):
    """Reads the step and compares every bit."""
    assert_same(store.read(step=step), state_of(step))
