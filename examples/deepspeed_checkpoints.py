"""DeepSpeed ZeRO with Cairn as its checkpoint engine, on CPUs.

    torchrun --nproc-per-node 2 examples/deepspeed_checkpoints.py runs/deepspeed --steps 12

Kill it and start it again: it continues from the latest checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.distributed as dist

from cairn.trainers.deepspeed import CairnCheckpointEngine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--stage", type=int, default=2, help="stage of ZeRO")
    parser.add_argument("--own", action="store_true", help="use DeepSpeed's own checkpoint engine")
    parser.add_argument("--sync", action="store_true", help="wait for each save")
    arguments = parser.parse_args()

    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 63), torch.nn.GELU(), torch.nn.LayerNorm(63), torch.nn.Linear(63, 16)
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": arguments.stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1000,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    if not arguments.own:
        engine.checkpoint_engine = CairnCheckpointEngine(async_=not arguments.sync)
    engine.load_checkpoint(arguments.folder)
    while engine.global_steps < arguments.steps:
        generator = torch.Generator().manual_seed(100 * engine.global_steps + dist.get_rank())
        inputs = torch.randn(4, 16, generator=generator).bfloat16()
        loss = (engine(inputs) - inputs.roll(1, 1)).float().square().mean()
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0:
            print(f"step {engine.global_steps} loss {loss.item():.9f}", flush=True)
        if engine.global_steps % arguments.interval == 0:
            engine.save_checkpoint(arguments.folder)
    engine.checkpoint_engine.cleanup()  # waits for the last checkpoint
    if dist.get_rank() == 0:
        weights = [p.detach().float().numpy().tobytes() for p in engine.module.parameters()]
        print(f"weights {hashlib.sha256(b''.join(weights)).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
