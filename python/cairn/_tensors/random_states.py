"""States of the random generators of a process, as values that a store can hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def rng_state() -> dict[str, Any]:
    """The generators of Python, numpy and torch, and of all CUDA devices if there are any."""
    version, words, gauss = random.getstate()
    state = {
        "python": (version, torch.tensor(words), gauss),  # words would be a value each
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Restores what `rng_state` has returned. CUDA devices that there are no states of keep
    theirs."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    for device, cuda in enumerate(state.get("cuda", ())[: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(cuda, device)
