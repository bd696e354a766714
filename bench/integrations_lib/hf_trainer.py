"""transformers.Trainer: its checkpoint folders, and `CairnCallback`."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from cairn.hf import CairnCallback
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Resumed, Run
from integrations_lib.training import Network, training_digest


class _ModelWithLoss(torch.nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.network(x) - labels).square().mean()}


def _trainer(run: Run) -> Any:
    network = Network(run.case.parameters, run.case.is_frozen)
    labels = torch.ones(network.width)
    data = [{"x": torch.randn(network.width), "labels": labels} for _ in range(2 * SAVES)]
    options = transformers.TrainingArguments(
        output_dir=str(run.folder / "out"), max_steps=SAVES, per_device_train_batch_size=2,
        save_strategy="steps", save_steps=1, logging_steps=1000, report_to="none", use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    return transformers.Trainer(_ModelWithLoss(network), options, train_dataset=data)


def _digest(trainer: Any) -> str:
    return training_digest(trainer.model, trainer.optimizer)


def _train_measured(run: Run, trainer: Any, finish: Any = None) -> None:
    save = trainer._save_checkpoint
    trainer._save_checkpoint = lambda *given: run.save(lambda: save(*given), finish)
    trainer.train()
    run.digest = _digest(trainer)


def train(run: Run) -> None:
    trainer = _trainer(run)
    if not run.case.is_cairn:
        _train_measured(run, trainer)
        return
    with CairnCallback(run.folder / "store") as checkpoints:
        checkpoints.attach(trainer)
        _train_measured(run, trainer, lambda: checkpoints._opened()._wait_for_last_save())


def _resume_measured(run: Run, trainer: Any, checkpoint: str) -> None:
    """The last of the parts that the Trainer loads is the random state."""
    for name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler"):
        load = getattr(trainer, name)
        timed = lambda *given, load=load: run.resume(lambda: load(*given))  # noqa: E731
        setattr(trainer, name, timed)
    load_random_state = trainer._load_rng_state

    def load_and_end(*given: Any) -> None:
        run.resume(lambda: load_random_state(*given))
        raise Resumed

    trainer._load_rng_state = load_and_end
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except Resumed:
        run.digest = _digest(trainer)


def resume(run: Run) -> None:
    trainer = _trainer(run)
    trainer.args.max_steps = SAVES + 1
    if not run.case.is_cairn:
        _resume_measured(run, trainer, str(run.folder / "out" / f"checkpoint-{SAVES}"))
        return
    checkpoints = CairnCallback(run.folder / "store")

    def latest() -> str:
        checkpoints.attach(trainer)
        found = checkpoints.latest()
        assert found is not None
        return found

    with checkpoints:
        _resume_measured(run, trainer, run.resume(latest))


LIBRARY = Library(
    title="transformers.Trainer",
    packages=("transformers",),
    rivals={"own": "cairn, async"},
    train=train,
    resume=resume,
    text="The checkpoint folders of the Trainer, and `CairnCallback` with its defaults.",
)
