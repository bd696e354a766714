"""accelerate: the folders of `save_state`, and `cairn.hf.use_store`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator

import cairn.hf
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Run
from integrations_lib.training import Network, training_digest


class _Job:
    def __init__(self, run: Run) -> None:
        self.accelerator = Accelerator(cpu=True)
        network = Network(run.case.parameters, run.case.is_frozen)
        optimizer = torch.optim.AdamW(network.trained(), lr=1e-3)
        self.network, self.optimizer = self.accelerator.prepare(network, optimizer)

    def step(self) -> None:
        self.accelerator.backward(self.network.loss())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def digest(self) -> str:
        return training_digest(self.network, self.optimizer.optimizer)


def _train_measured(
    run: Run, job: _Job, name_of: Callable[[int], str], finish: Callable[[], Any] | None = None
) -> None:
    for step in range(1, SAVES + 1):
        job.step()
        run.save(lambda step=step: job.accelerator.save_state(name_of(step)), finish)
    run.digest = job.digest()


def train(run: Run) -> None:
    job = _Job(run)
    if not run.case.is_cairn:
        _train_measured(run, job, lambda step: str(run.folder / f"step_{step}"))
        return
    with cairn.hf.use_store(job.accelerator, run.folder / "store") as saves:
        _train_measured(run, job, lambda step: f"step_{step}", saves.steps)


def resume(run: Run) -> None:
    job = _Job(run)
    if not run.case.is_cairn:
        run.resume(lambda: job.accelerator.load_state(str(run.folder / f"step_{SAVES}")))
        run.digest = job.digest()
        return
    saves = run.resume(lambda: cairn.hf.use_store(job.accelerator, run.folder / "store"))
    with saves:
        run.resume(job.accelerator.load_state)
        run.digest = job.digest()


LIBRARY = Library(
    title="accelerate",
    packages=("accelerate",),
    rivals={"own": "cairn, async"},
    train=train,
    resume=resume,
    text="The folders of `save_state`, and `cairn.hf.use_store` with its defaults.",
)
