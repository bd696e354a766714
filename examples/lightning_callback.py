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

from cairn.trainers.lightning import CairnCheckpoint


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
