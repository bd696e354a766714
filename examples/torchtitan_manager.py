"""Cairn as the checkpoint manager of torchtitan, with FSDP2 on CPUs.

    torchrun --nproc-per-node 2 examples/torchtitan_manager.py runs/titan --steps 12

torchtitan's trainer needs a GPU. This script is the loop of a trainer around torchtitan's own
optimizers, schedulers, dataloader and checkpoint configuration. Kill it and start it again, on any
number of ranks: the losses continue as if it had not been stopped.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

from cairn.trainers.torchtitan import CairnCheckpointManager


class Batches(IterableDataset):
    """Batches that are the same on all ranks, so that the losses do not depend on their number."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            self.position += 1
            generator = torch.Generator().manual_seed(self.position)
            yield torch.randn(8, 16, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Progress:
    """What torchtitan's trainer adds to a checkpoint."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def build_model() -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.GELU(), torch.nn.Linear(256, 16))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="dump folder; the store is in it")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--mode", default="async", help="async_mode of the manager")
    parser.add_argument("--own", action="store_true", help="use torchtitan's own manager")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    model, progress = build_model(), Progress()
    optimizers = default_adamw(lr=1e-2, implementation="for-loop").build(model_parts=[model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
        optimizers=optimizers, training_steps=100
    )
    loader = ParallelAwareDataloader(Batches(), 0, 1, batch_size=None)
    manager_class = CheckpointManager if arguments.own else CairnCheckpointManager
    manager = manager_class.Config(
        enable=True, interval=arguments.interval, keep_latest_k=2, async_mode=arguments.mode,
        last_save_model_only=False,
    ).build(
        dataloader=loader, model_parts=[model], optimizers=optimizers, lr_schedulers=schedulers,
        states={"train_state": progress}, sd_adapter=None, base_folder=arguments.folder,
    )
    manager.load()
    batches = iter(loader)
    while progress.step < arguments.steps:
        progress.step += 1
        loss = (model(next(batches)) - 1).square().mean()
        loss.backward()
        manager.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {progress.step} loss {loss.item():.9f}", flush=True)
        manager.save(progress.step, last_step=progress.step == arguments.steps)
    manager.close()
    weights = b"".join(p.full_tensor().detach().numpy().tobytes() for p in model.parameters())
    if dist.get_rank() == 0:
        print(f"weights {hashlib.sha256(weights).hexdigest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
