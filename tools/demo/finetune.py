"""Two fine-tunes of the GPT on one license, each in the store of its training."""

import random
from pathlib import Path

import torch

import cairn
from gpt import GPT, Adapted, Config, next_batch, read_documents

FROZEN = ("embed.", "layers.")


def train_adapter(
    path: Path, from_step: int, first_step: int, steps: int, save_every: int
) -> tuple[int, cairn.LoadReport, list[float], list[cairn.SaveReport]]:
    """Loads only the GPT's embedding and first two layers, freezes them, and trains a small new
    adapter after them. Returns the number of keys of the part, the reports of its load and of the
    saves, and the loss of each step."""
    torch.manual_seed(8)
    random.seed(8)
    torch.set_num_threads(2)
    text = read_documents()[-1]
    model = Adapted(Config(layers=2, dropout=0.0))
    with cairn.open(path, mode="a") as store:
        # Only the requested keys of the step are read.
        frozen = {key: value for key, value in model.state_dict().items() if key.startswith(FROZEN)}
        loaded = store.load({"model": frozen}, step=from_step, strict=False)
        for name, parameter in model.named_parameters():
            parameter.requires_grad = not name.startswith(FROZEN)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=3e-3)

        losses, saves = [], []
        for step in range(1, steps + 1):
            loss = model.loss(next_batch(text))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % save_every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                         "step": step}  # fmt: skip
                saves.append(store.save(first_step + step, state))
    return len(frozen), loaded, losses, saves


def publish(path: Path, from_step: int, steps: range) -> list[tuple[int, int, int]]:
    """Trains all of the GPT gently and publishes its bf16 weights after every step, with deltas.
    Returns, for each of `steps`, its number, its size and the bytes that were written."""
    torch.manual_seed(9)
    random.seed(9)
    torch.set_num_threads(2)
    text = read_documents()[-1]
    model = GPT(Config(dropout=0.0))
    tuning = cairn.SaveTuning(deltas=True)
    published = []
    with cairn.open(path, mode="a") as store:
        store.load({"model": model}, step=from_step, strict=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        for step in steps:
            weights = {name: value.detach().bfloat16() for name, value in model.named_parameters()}
            saved = store.save_async(step, {"weights": weights}, tuning=tuning).result()
            published.append((step, saved.logical_bytes, saved.written_bytes))
            optimizer.zero_grad()
            model.loss(next_batch(text)).backward()
            optimizer.step()
    return published
