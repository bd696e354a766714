"""Trains a small model, saves checkpoints, and continues where it was stopped.

    python examples/plain_torch.py runs/plain --steps 300

Stop it at any time (Ctrl-C, kill, kill -9) and start it again with the same command: the losses
continue as if it had not been stopped. `kv-dump runs/plain` shows what was saved.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import cairn
from cairn.torch import Saver


class App:
    """Combines model and optimizer into one object with a state dict.

    torch's `get_state_dict` names the optimizer's state by parameter, and creates it before the
    first step, so that a load can fill it.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer

    def state_dict(self) -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(self.model, self.optimizer)
        return {"model": model_state, "optimizer": optimizer_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def train_one_step(app: App) -> float:
    batch = torch.randn(32, 16)
    loss = (app.model(batch).squeeze(1) - batch.sum(1).sin()).square().mean()
    app.optimizer.zero_grad()
    loss.backward()
    app.optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="directory of the store")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=25, help="number of steps between saves")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 128), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(128, 1)
    )
    app = App(model, torch.optim.AdamW(model.parameters(), lr=3e-3))

    def state() -> dict[str, Any]:
        return {"app": app, "rng": torch.get_rng_state()}

    with cairn.open(arguments.store, mode="a") as store:
        with Saver(store, every=arguments.every, keep_last=3, keep_every=100) as saver:
            loaded = state()
            done = saver.resume(loaded)
            if done is not None:
                torch.set_rng_state(loaded["rng"])
                print(f"continues after step {done}", flush=True)
            for step in range(1 if done is None else done + 1, arguments.steps + 1):
                print(f"step {step} loss {train_one_step(app):.6f}", flush=True)
                saver.step(step, state)
            saver.save(arguments.steps, state)


if __name__ == "__main__":
    main()
