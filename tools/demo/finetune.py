"""Fine-tuning on one license: loads only the GPT's embedding and first two layers, freezes them,
and trains a small new adapter after them."""

import random
from pathlib import Path

import torch

import cairn
from gpt import Adapted, Config, next_batch, read_documents

FROZEN = ("embed.", "layers.")


def finetune(
    path: Path, from_step: int, first_step: int, steps: int, save_every: int
) -> tuple[int, cairn.LoadReport, list[float], list[cairn.SaveReport]]:
    """Returns the number of keys of the part, the reports of its load and of the saves, and the
    loss of each step."""
    torch.manual_seed(8)
    random.seed(8)
    torch.set_num_threads(2)
    text = list(read_documents().values())[-1]
    config = Config(layers=2, dropout=0.0)
    model = Adapted(config)
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
            loss = model.loss(next_batch(text, config.context + 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if step % save_every == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                         "step": step}  # fmt: skip
                saves.append(store.save(first_step + step, state))
    return len(frozen), loaded, losses, saves
