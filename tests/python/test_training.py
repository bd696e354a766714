"""A real training run: resumed from a checkpoint, it continues bit for bit."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from cairn_testing import payload

import cairn


class Run:
    """A small network with everything that a training loop has to restore."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(8, 32),
            torch.nn.BatchNorm1d(32),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(32, 8),
        )
        self.model[4].weight = torch.nn.Parameter(self.model[0].weight.detach().t().contiguous())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, amsgrad=True)
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, total_steps=40)

    def step(self) -> float:
        batch = torch.randn(16, 8) + random.random() + np.random.rand()
        loss = (self.model(batch) - batch).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def state(self) -> dict:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": {
                "torch": torch.get_rng_state(),
                "python": random.getstate(),
                "numpy": np.random.get_state(),
            },
        }

    def restore(self, state: dict) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        torch.set_rng_state(state["rng"]["torch"])
        random.setstate(state["rng"]["python"])
        np.random.set_state(state["rng"]["numpy"])


def train_and_save(store: cairn.Store) -> tuple[list[float], bytes]:
    """Losses of steps 10 to 19 after a save at step 10, and the final first layer."""
    run = Run(seed=1)
    for _ in range(10):
        run.step()
    store.save(10, run.state())
    losses = [run.step() for _ in range(10)]
    return losses, payload(run.model[0].weight)


def test_a_run_resumed_by_read_goes_on_bit_for_bit(store: cairn.Store):
    expected = train_and_save(store)
    resumed = Run(seed=2)
    resumed.restore(store.read(step=10))
    assert ([resumed.step() for _ in range(10)], payload(resumed.model[0].weight)) == expected


def test_a_fine_tune_takes_a_part_and_saves_only_what_it_trains(store: cairn.Store, tmp_path: Path):
    train_and_save(store)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 300))
    part = store.read("model.0.*", flat=True)
    model.load_state_dict({fqn.removeprefix("model."): t for fqn, t in part.items()}, strict=False)
    model[0].requires_grad_(False)

    with cairn.open(tmp_path / "fine", mode="a") as fine:
        first = fine.save(0, {"model": model.state_dict()})
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        second = fine.save(1, {"model": model.state_dict()})
        assert second.chunks_reused == 2
        assert second.written_bytes == first.written_bytes - 4 * (8 * 32 + 32)
        assert set(fine.diff(0, 1).changed) == {"model.1.weight", "model.1.bias"}
