"""torchtitan: its `CheckpointManager`, which uses torch.distributed.checkpoint, and Cairn's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

from cairn.trainers.torchtitan import CairnCheckpointManager
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Run
from integrations_lib.training import Network, training_digest


class _Job:
    """FSDP2 on CPUs, with the parts of torchtitan's trainer that checkpoints contain."""

    def __init__(self, run: Run) -> None:
        self.network = Network(run.case.parameters, run.case.is_frozen)
        for layer in self.network.layers:
            fully_shard(layer)
        fully_shard(self.network)
        self.optimizers = default_adamw(implementation="for-loop").build(
            model_parts=[self.network]
        )
        self.schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
            optimizers=self.optimizers, training_steps=100
        )
        kind = CairnCheckpointManager if run.case.is_cairn else CheckpointManager
        self.manager = kind.Config(
            enable=True, interval=1, keep_latest_k=0, folder="steps", last_save_model_only=False,
            async_mode="async" if run.case.is_async else "disabled",
        ).build(
            dataloader=None, model_parts=[self.network], optimizers=self.optimizers,
            lr_schedulers=self.schedulers, states={}, sd_adapter=None, base_folder=str(run.folder),
        )  # fmt: skip
        self.manager.states.pop("dataloader")

    def step(self) -> None:
        self.network.loss().backward()
        self.manager.maybe_wait_for_staging()
        self.optimizers.step()
        self.schedulers.step()
        self.optimizers.zero_grad()

    def digest(self) -> str:
        return training_digest(self.network, next(iter(self.optimizers)))


@contextmanager
def _job(run: Run) -> Iterator[_Job]:
    dist.init_process_group("gloo")
    job = _Job(run)
    try:
        yield job
    finally:
        job.manager.close()
        dist.destroy_process_group()


def train(run: Run) -> None:
    with _job(run) as job:

        def save(step: int) -> Any:
            """With torchtitan's own manager, the parameters must not change until the copies are
            made, for which its trainer waits before the next step."""
            job.manager.save(step)
            job.manager.maybe_wait_for_staging()

        for step in range(1, SAVES + 1):
            job.step()
            run.save(lambda step=step: save(step), job.manager.maybe_wait_for_saving)
        run.digest = job.digest()


def resume(run: Run) -> None:
    with _job(run) as job:
        with torch.no_grad():
            assert run.resume(lambda: job.manager.load())
        run.digest = job.digest()


LIBRARY = Library(
    title="torchtitan",
    packages=("torchtitan",),
    rivals={"own": "cairn", "own, async": "cairn, async"},
    train=train,
    resume=resume,
    ranks=2,
    text="`CheckpointManager` and `CairnCheckpointManager` with `async_mode` `disabled` and "
    "`async`, with FSDP2 on two ranks.",
)
