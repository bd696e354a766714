"""Cairn as the `CheckpointIO` of PyTorch Lightning, with `ModelCheckpoint`.

    python examples/lightning_checkpoints.py runs/lightning --epochs 3

Kill it at any moment and start it again: it continues after the last checkpoint, also within an
epoch, and prints the same losses as a run that was not killed.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader

from cairn.trainers.lightning import CairnCheckpointIO


class Regression(lightning.LightningModule):
    """Something to train."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.save_hyperparameters()
        layers = [torch.nn.Linear(16, width), torch.nn.GELU()]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = (self.model(inputs).squeeze(1) - targets).square().mean()
        self.log("loss", loss)
        print(f"step {self.global_step} loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="folder of the checkpoints and of the store")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--background", action="store_true", help="write in the background")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    inputs = torch.randn(512, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1).sin())
    checkpoints = ModelCheckpoint(
        arguments.folder, monitor="loss", save_top_k=2, save_last=True, every_n_train_steps=3
    )
    trainer = lightning.Trainer(
        max_epochs=arguments.epochs,
        accelerator="cpu",
        callbacks=[checkpoints],
        plugins=[CairnCheckpointIO(async_=arguments.background)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    model = Regression()
    # The loader has a state, which Lightning saves: the run continues with the next batch.
    trainer.fit(model, StatefulDataLoader(data, batch_size=32), ckpt_path="last")
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(f"weights {hashlib.sha256(weights).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
