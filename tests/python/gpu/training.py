"""A training that resumes from its newest step: training.py STORE STEPS. Prints the loss of each
step when the step before it is committed."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic products

import torch

import cairn

DEVICE = os.environ.get("CAIRN_TRAINING_DEVICE", "cuda")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(1000, 256)
        layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 4)
        self.head = torch.nn.Linear(256, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(tokens)))


def main() -> None:
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)

    def train() -> torch.Tensor:
        tokens = torch.randint(0, 1000, (8, 64), device=DEVICE)
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        return loss.detach()

    def state(step: int) -> dict:
        random = {"cpu": torch.get_rng_state()}
        if DEVICE == "cuda":
            random["cuda"] = torch.cuda.get_rng_state()
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "random": random,
            "step": step,
        }

    begin = 0
    with cairn.open(sys.argv[1], mode="a", take_over=True) as store:
        if store.steps():
            saved = store.read(device=DEVICE)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            scheduler.load_state_dict(saved["scheduler"])
            torch.set_rng_state(saved["random"]["cpu"].cpu())
            if DEVICE == "cuda":
                torch.cuda.set_rng_state(saved["random"]["cuda"].cpu())
            begin = saved["step"]
        handle = None
        for step in range(begin, int(sys.argv[2])):
            loss = train()
            if handle is not None:
                handle.wait_staged(torch.cuda.current_stream() if DEVICE == "cuda" else None)
            optimizer.step()
            scheduler.step()
            if handle is not None:
                handle.result()
            print(step, loss.item().hex(), flush=True)
            handle = store.save_async(step + 1, state(step + 1))
        if handle is not None:
            handle.result()


if __name__ == "__main__":
    main()
