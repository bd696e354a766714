"""FSDP2 on several ranks: each rank saves its shards, and any number of ranks can continue.

    torchrun --nproc-per-node 4 examples/fsdp2_torchrun.py runs/fsdp2 --steps 20
    torchrun --nproc-per-node 2 examples/fsdp2_torchrun.py runs/fsdp2 --steps 40

Runs on CPUs with Gloo; for GPUs, change the device and the backend. If one rank, or torchrun,
receives SIGTERM, all ranks save the current step and exit.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from plain_torch import App
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cairn
from cairn.torch import Saver

GLOBAL_BATCH = 48


def sharded_model() -> torch.nn.Module:
    torch.manual_seed(0)  # the same weights on all ranks; then each keeps only its shards
    layers = [torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 30)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(30, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_one_step(app: App, step: int) -> float:
    """Trains on this rank's part of the batch. Returns the loss of the complete batch."""
    whole = torch.randn(GLOBAL_BATCH, 16, generator=torch.Generator().manual_seed(step))
    batch = whole[dist.get_rank() :: dist.get_world_size()]
    loss = (app.model(batch).squeeze(1) - batch.sum(1).sin()).square().mean()
    app.optimizer.zero_grad()
    loss.backward()
    app.optimizer.step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="directory of the store, which all ranks can see")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="number of steps between saves")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    model = sharded_model()
    app = App(model, torch.optim.AdamW(model.parameters(), lr=3e-3))

    def state() -> dict[str, Any]:
        return {"app": app}

    # All ranks open the store together, and each passes the tensors that it holds.
    with cairn.open(arguments.store, mode="a") as store:
        with Saver(store, every=arguments.every, keep_last=3) as saver:
            done = saver.resume(state())
            if done is not None and dist.get_rank() == 0:
                print(f"continues after step {done}", flush=True)
            for step in range(1 if done is None else done + 1, arguments.steps + 1):
                loss = train_one_step(app, step)
                if dist.get_rank() == 0:
                    print(f"step {step} loss {loss:.6f}", flush=True)
                saver.step(step, state)
            saver.save(arguments.steps, state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
