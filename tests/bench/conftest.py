"""bench/ is a program, not an installed package."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))


@pytest.fixture(autouse=True)
def one_thread():
    """The children of `run_in_child` are forked, so they lack the threads that torch may have
    started in this process for another test, and would wait for them."""
    torch.set_num_threads(1)
