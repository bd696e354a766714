"""What the pages leave out: a model, an optimizer, a state, and a store with five steps."""

import json
import os
import pathlib
import subprocess

import cairn
import cairn.torch
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn.torch import Saver


class Net(torch.nn.Module):
    """Small, with the names that the pages use."""

    def __init__(self):
        super().__init__()
        self.wte = torch.nn.Embedding(32, 8)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))
        self.backbone = torch.nn.Linear(8, 8)
        self.encoder = torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, tokens):
        x = self.wte(tokens)
        for layer in (*self.layers, self.backbone, self.encoder, self.norm):
            x = layer(x)
        return self.head(x)


def train_one_step(batch=None):
    optimizer.zero_grad()
    model(torch.arange(32)).square().mean().backward()
    optimizer.step()


def make_state():
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def evaluate():
    return 2.1


def save_steps(address, steps=(100, 200, 300, 400, 500)):
    with cairn.open(address, mode="a", grace=0) as opened:
        for number in steps:
            train_one_step()
            metrics = {"val_loss": 1000 / number, "accuracy": number / 1000}
            opened.save(
                number, make_state(), metrics=metrics, tuning=cairn.SaveTuning(statistics=True)
            )
        opened.tag(steps[-2], "best")


torch.manual_seed(0)
model = Net()
encoder = model.encoder
optimizer = torch.optim.AdamW(model.parameters())
train_one_step()
state = make_state()
step, last = 1000, 1003
