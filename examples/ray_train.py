"""Cairn in Ray Train: two workers on CPUs, whose group is restarted after a failure.

    python examples/ray_train.py runs/ray --steps 12

Each worker group resumes from the checkpoint that was reported last. With `--kill-at 7`, a worker
kills itself at that step, once, to show this.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import cairn
from cairn.trainers.ray import load_checkpoint, save_checkpoint


def train_func(config: dict[str, Any]) -> None:
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    momentum = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for name, parameter in model.named_parameters():
        optimizer.state[parameter]["momentum_buffer"] = momentum[name]
    state = {"model": model.module, "momentum": momentum}
    step = 0
    with cairn.open(config["store"], mode="a") as store:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint is not None:
            step = load_checkpoint(checkpoint, state, store=store)
        first = step + 1
        while step < config["steps"]:
            step += 1
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs = torch.randn(8, 16, generator=generator)
            loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 1 and step == config["kill_at"] and first == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            metrics = {"step": step, "loss": loss.item(), "first": first}
            if step % config["interval"] == 0:
                ray.train.report(metrics, checkpoint=save_checkpoint(store, step, state))
            else:
                ray.train.report(metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the results and of the store")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--kill-at", type=int, default=-1)
    arguments = parser.parse_args()

    folder = arguments.folder.resolve()
    config = {
        "store": str(folder / "store"), "steps": arguments.steps,
        "interval": arguments.interval, "kill_at": arguments.kill_at,
    }
    ray.init(num_cpus=4, include_dashboard=False)
    trainer = TorchTrainer(
        train_func,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run", storage_path=str(folder), failure_config=FailureConfig(max_failures=2)
        ),
    )
    result = trainer.fit()
    with cairn.open(config["store"]) as store:
        weights = store.read("model")["model"]
        digest = hashlib.sha256(b"".join(w.numpy().tobytes() for w in weights.values()))
        print(f"resumed after step {result.metrics['first'] - 1}")
        print(f"step {store.steps()[-1]} loss {result.metrics['loss']:.9f}")
        print(f"weights {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
