"""PyTorch Lightning: `ModelCheckpoint` with its own `CheckpointIO`, and with Cairn's."""

from __future__ import annotations

import logging
from typing import Any

import pytorch_lightning as lightning
import torch
from lightning_fabric.plugins import TorchCheckpointIO
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins.io import AsyncCheckpointIO

from cairn.trainers.lightning import CairnCheckpointIO
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Resumed, Run
from integrations_lib.training import Network, training_digest


class _Module(lightning.LightningModule):
    def __init__(self, run: Run) -> None:
        super().__init__()
        self.network = Network(run.case.parameters, run.case.is_frozen)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return (self.network(batch) - 1).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.network.trained(), lr=1e-3)


class _StopWhenLoaded(lightning.Callback):
    def on_train_start(self, *_: Any) -> None:
        raise Resumed


def _plugin(run: Run) -> Any:
    if run.case.is_cairn:
        return CairnCheckpointIO(async_=run.case.is_async)
    return AsyncCheckpointIO(TorchCheckpointIO()) if run.case.is_async else TorchCheckpointIO()


def _trainer(run: Run, *callbacks: lightning.Callback) -> lightning.Trainer:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    return lightning.Trainer(
        max_steps=SAVES, accelerator="cpu", devices=1, logger=False, plugins=[_plugin(run)],
        callbacks=list(callbacks), enable_checkpointing=bool(callbacks),
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=run.folder,
    )  # fmt: skip


def _batches(module: _Module) -> torch.utils.data.DataLoader:
    batches = [torch.randn(2, module.network.width) for _ in range(2 * SAVES)]
    return torch.utils.data.DataLoader(batches, batch_size=None)


def _wait(plugin: Any) -> None:
    """Until the save is complete."""
    if isinstance(plugin, CairnCheckpointIO):
        plugin._wait()
    else:
        plugin.teardown()


def train(run: Run) -> None:
    checkpoints = ModelCheckpoint(
        run.folder, filename="{step}", every_n_train_steps=1, save_top_k=-1
    )
    trainer = _trainer(run, checkpoints)
    module = _Module(run)
    save, plugin = trainer.save_checkpoint, trainer.strategy.checkpoint_io

    def measured(*given: Any, **options: Any) -> None:
        run.save(lambda: save(*given, **options), lambda: _wait(plugin))

    trainer.save_checkpoint = measured  # type: ignore[method-assign]
    trainer.fit(module, _batches(module))
    run.digest = training_digest(module, trainer.optimizers[0])


def resume(run: Run) -> None:
    module, trainer = _Module(run), _trainer(run, _StopWhenLoaded())
    trainer.fit_loop.epoch_loop.max_steps = SAVES + 1
    connector = trainer._checkpoint_connector
    for name in ("resume_start", "restore_model", "restore_training_state"):
        load = getattr(connector, name)

        def timed(*given: Any, load: Any = load, **options: Any) -> Any:
            return run.resume(lambda: load(*given, **options))

        setattr(connector, name, timed)
    try:
        trainer.fit(module, _batches(module), ckpt_path=str(run.folder / f"step={SAVES}.ckpt"))
    except Resumed:
        run.digest = training_digest(module, trainer.optimizers[0])


LIBRARY = Library(
    title="PyTorch Lightning",
    packages=("pytorch-lightning",),
    rivals={"own": "cairn", "own, async": "cairn, async"},
    train=train,
    resume=resume,
    text="`ModelCheckpoint` with `TorchCheckpointIO` and with `AsyncCheckpointIO`, and with "
    "`CairnCheckpointIO`, without and with `async_=True`.",
)
