"""Cairn in PyTorch Lightning: a callback that saves after epochs and resumes from the last one.

    python examples/lightning_callback.py runs/lightning --epochs 6

Stop it and start it again with more epochs: the losses continue as if it had not been stopped. On
SIGTERM, it saves at the end of the epoch and exits.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytorch_lightning as lightning
import torch

import cairn
from cairn.torch import Saver


class CairnCheckpoint(lightning.Callback):
    """Saves module, optimizers, schedulers and loops; for training in one process.

    The state of random generators is not saved, because Lightning uses them between epochs: seed
    them by epoch in `on_train_epoch_start`.

    Args:
        address: Address of the store.
        every: Number of epochs between saves.
        options: Options of the `Saver`.
    """

    def __init__(self, address: str, every: int = 1, **options: Any) -> None:
        self._address, self._options = address, {"every": every, **options}
        self._loaded: dict[str, Any] | None = None

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._store = cairn.open(self._address, mode="a")
        self._saver = Saver(self._store, **self._options)
        if self._store.steps():
            self._loaded = self._store.read()
            module.load_state_dict(self._loaded["module"])
            trainer.fit_loop.load_state_dict(self._loaded["loops"])

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._loaded is None:
            return
        for optimizer, state in zip(trainer.optimizers, self._loaded["optimizers"]):
            optimizer.load_state_dict(state)
        for config, state in zip(trainer.lr_scheduler_configs, self._loaded["schedulers"]):
            config.scheduler.load_state_dict(state)
        self._loaded = None

    def on_train_epoch_end(
        self, trainer: lightning.Trainer, module: lightning.LightningModule
    ) -> None:
        def state() -> dict[str, Any]:
            return {
                "module": module.state_dict(),
                "optimizers": [one.state_dict() for one in trainer.optimizers],
                "schedulers": [one.scheduler.state_dict() for one in trainer.lr_scheduler_configs],
                "loops": trainer.fit_loop.state_dict(),
            }

        self._saver.step(trainer.current_epoch, state)

    def teardown(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str
    ) -> None:
        self._saver.close()
        self._store.close()


class Regression(lightning.LightningModule):
    """Something to train."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Linear(16, 64), torch.nn.GELU()]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        inputs, targets = batch
        return (self.model(inputs).squeeze(1) - targets).square().mean()

    def on_train_batch_end(self, outputs: dict[str, torch.Tensor], batch: Any, index: int) -> None:
        if self.trainer.is_last_batch:
            epoch, loss = self.trainer.current_epoch, outputs["loss"].item()
            print(f"epoch {epoch} step {self.global_step} loss {loss:.6f}", flush=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        # Lightning updates per-epoch schedulers after its callbacks, so a save would miss the
        # update.
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="directory of the store")
    parser.add_argument("--epochs", type=int, default=6)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1).sin())
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        callbacks=[CairnCheckpoint(arguments.store, keep_last=2)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Regression(), torch.utils.data.DataLoader(data, batch_size=32))


if __name__ == "__main__":
    main()
