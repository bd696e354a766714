"""Fine-tunes a model of Hugging Face with FSDP2, from one model directory to another.

    kv-admin import runs/sft --step 0 models/base --format hf --prefix model
    torchrun --nproc-per-node 2 examples/finetune_hf.py runs/sft corpus.txt --steps 200
    torchrun --nproc-per-node 1 examples/finetune_hf.py runs/sft corpus.txt --steps 300
    kv-dump diff runs/sft@0 runs/sft@300 model
    kv-admin export runs/sft@300 models/tuned --format hf

Stop it at any time, also with kill -9, and start it again with any number of ranks that divides the
batch. Runs on CPUs with Gloo; for GPUs, change the device and the backend.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from plain_torch import App
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cairn
import cairn.hf
from cairn.torch import Saver

BASE = 0  # the step that was imported
GLOBAL_BATCH = 8
BLOCK_TOKENS = 32


class FineTuning(App):
    """Model, optimizer, and the files that make every saved step a model of transformers."""

    def __init__(self, model: torch.nn.Module, tokenizer: Any, learning_rate: float) -> None:
        self.described = cairn.hf.describe(model, "model", tokenizer=tokenizer)
        shard(model)
        super().__init__(model, torch.optim.AdamW(model.parameters(), lr=learning_rate))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **self.described}


def shard(model: Any) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def blocks_of(text: Path, tokenizer: Any) -> torch.Tensor:
    """The tokens of a text in rows of equal length."""
    tokens = torch.tensor(tokenizer(text.read_text())["input_ids"])
    count = len(tokens) // BLOCK_TOKENS
    if count == 0:
        raise SystemExit(f"{text} has fewer than {BLOCK_TOKENS} tokens")
    return tokens[: count * BLOCK_TOKENS].reshape(count, BLOCK_TOKENS)


def train_one_step(app: FineTuning, blocks: torch.Tensor, step: int) -> float:
    """Trains on this rank's part of the batch. Returns the loss of the complete batch."""
    random = torch.Generator().manual_seed(step)  # the same batch, regardless of who resumes
    whole = blocks[torch.randint(len(blocks), (GLOBAL_BATCH,), generator=random)]
    batch = whole[dist.get_rank() :: dist.get_world_size()]
    loss = app.model(input_ids=batch, labels=batch).loss
    app.optimizer.zero_grad()
    loss.backward()
    app.optimizer.step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="the store with the imported model, which all ranks can see")
    parser.add_argument("text", type=Path, help="a file of text to train on")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="number of steps between saves")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    # Every rank reads the complete model and then keeps its shards.
    model = cairn.hf.from_pretrained(arguments.store, BASE, dtype=torch.float32).train()
    tokenizer = cairn.hf.load_tokenizer(arguments.store, BASE)
    blocks = blocks_of(arguments.text, tokenizer)
    app = FineTuning(model, tokenizer, arguments.learning_rate)
    is_first = dist.get_rank() == 0

    with cairn.open(arguments.store, mode="a") as store:
        # The imported step is neither resumed from nor deleted.
        with Saver(store, every=arguments.every, keep_last=2, base=BASE) as saver:
            done = saver.resume(app)
            if done is not None and is_first:
                print(f"continues after step {done}", flush=True)
            for step in range(1 if done is None else done + 1, arguments.steps + 1):
                loss = train_one_step(app, blocks, step)
                if is_first:
                    print(f"step {step} loss {loss:.6f}", flush=True)
                saver.step(step, app)
            saver.save(arguments.steps, app)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
