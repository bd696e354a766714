"""Trains with Lightning's ModelParallelStrategy on two CPUs, and saves or resumes at the end of the
first epoch: dcp_program.py save|resume CHECKPOINT. Prints the losses."""

import sys

import cairn.dcp
import pytorch_lightning as lightning
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from pytorch_lightning.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

cairn.dcp.register(new=True)
dcp.FileSystemWriter, dcp.FileSystemReader = CairnWriter, CairnReader


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))

    def configure_model(self):
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def training_step(self, batch, _):
        loss = self.layers(batch).square().sum()
        if self.global_rank == 0:
            print("loss", self.current_epoch, loss.item(), flush=True)
        return loss


class SaveAfterFirstEpoch(lightning.Callback):
    def on_train_epoch_end(self, trainer, _):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(sys.argv[2])


saves = sys.argv[1] == "save"
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy=ModelParallelStrategy(), max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    callbacks=[SaveAfterFirstEpoch()] if saves else [],
)
batches = torch.utils.data.DataLoader(torch.arange(128.0).view(16, 8).sin(), batch_size=4)
trainer.fit(Model(), batches, ckpt_path=None if saves else sys.argv[2])
