"""Megatron-Core: its strategy `torch_dist`, and Cairn's.

Megatron's own saves call `torch.cuda.synchronize` and create one integer on the current CUDA
device. On a machine without CUDA, the first call is left out here, and the integer is in host
memory. All other code of the saves and loads is Megatron's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy

from cairn.trainers.megatron import CairnSaveStrategy
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Run
from integrations_lib.training import Network, training_digest

if not torch.cuda.is_available():
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]


class _Job:
    """Each rank has its part of each parameter, with the optimizer's state for it."""

    def __init__(self, run: Run) -> None:
        dist.init_process_group("gloo")
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=run.ranks)
        self.ranks, self.rank = run.ranks, run.rank
        self.network = Network(run.case.parameters / run.ranks, run.case.is_frozen)
        self.optimizer = torch.optim.AdamW(self.network.trained(), lr=1e-3)
        self.folder = run.folder
        self.strategy: Any = CairnSaveStrategy()
        if not run.case.is_cairn:
            self.strategy = TorchDistSaveShardedStrategy("torch_dist", 1)

    def step(self) -> None:
        self.network.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """The parameters and moments of the ranks are the shards of larger tensors."""

        def sharded(key: str, data: torch.Tensor) -> ShardedTensor:
            if data.ndim == 0:
                return ShardedTensor.from_rank_offsets(key, data, replica_id=self.rank)
            return ShardedTensor.from_rank_offsets(key, data, (0, self.rank, self.ranks))

        state: dict[str, Any] = {"model": {}, "optimizer": {}}
        for name, parameter in self.network.named_parameters():
            state["model"][name] = sharded(f"model.{name}", parameter.data)
            state["optimizer"][name] = {
                field: sharded(f"optimizer.{name}.{field}", value)
                for field, value in self.optimizer.state[parameter].items()
            }
        return state

    def directory(self, step: int) -> Path:
        return self.folder / f"iter_{step:07d}"

    def save(self, step: int) -> None:
        os.makedirs(self.directory(step), exist_ok=True)
        dist_checkpointing.save(self.state(), str(self.directory(step)), self.strategy)

    def load(self, step: int) -> None:
        loaded = dist_checkpointing.load(self.state(), str(self.directory(step)))
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(loaded["model"][name])
                self.optimizer.state[parameter].update(loaded["optimizer"][name])

    def digest(self) -> str:
        return training_digest(self.network, self.optimizer)


def train(run: Run) -> None:
    job = _Job(run)
    for step in range(1, SAVES + 1):
        job.step()
        run.save(lambda step=step: job.save(step))
    run.digest = job.digest()
    dist.destroy_process_group()


def resume(run: Run) -> None:
    job = _Job(run)
    job.step()  # a load fills existing memory, also that of the optimizer
    run.resume(lambda: job.load(SAVES))
    run.digest = job.digest()
    dist.destroy_process_group()


LIBRARY = Library(
    title="Megatron-Core",
    packages=("megatron-core",),
    rivals={"own": "cairn"},
    train=train,
    resume=resume,
    ranks=2,
    text="`dist_checkpointing.save` with `TorchDistSaveShardedStrategy` and with "
    "`CairnSaveStrategy`, with tensors that are divided between two ranks. Megatron syncs the "
    "files of the tensors itself, and its first save starts a process, which is its longest stall. "
    "Its own saves call two functions of CUDA (`synchronize`, and one integer on the device), "
    "which the benchmark replaces, because this machine has no GPU.",
)
