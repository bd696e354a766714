"""A training loop with accelerate whose states are in a store; for tests that kill it.

    python accelerate_program.py STORE [STEP]     # is killed in that step
"""

import hashlib
import os
import signal
import sys

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed

import cairn.hf

STEPS = 20


class Counter:
    """An object that is registered for checkpointing."""

    def __init__(self):
        self.tokens = 0

    def state_dict(self):
        return {"tokens": self.tokens}

    def load_state_dict(self, state):
        self.tokens = state["tokens"]


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(4)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.BatchNorm1d(32),
        torch.nn.Linear(32, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=100)
    inputs = torch.randn(64, 8)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1).sin())
    # Each iterator draws from the generator, and a resumed epoch has one iterator more.
    loader = torch.utils.data.DataLoader(data, batch_size=4, generator=torch.Generator())
    counter = Counter()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    accelerator.register_for_checkpointing(counter)

    done = 0
    with cairn.hf.use_store(accelerator, sys.argv[1], keep_last=2) as saves:
        if saves.steps():
            accelerator.load_state()
            done = saves.steps()[-1]
        while done < STEPS:
            per_epoch = len(loader)
            rest = skip_first_batches(loader, done % per_epoch) if done % per_epoch else loader
            for x, y in rest:
                loss = (model(x).squeeze(1) - y).square().mean()
                accelerator.backward(loss)
                if [str(done)] == sys.argv[2:]:
                    os.kill(os.getpid(), signal.SIGKILL)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                done += 1
                counter.tokens += len(x)
                accelerator.print(f"step {done} loss {loss.item():.9f}", flush=True)
                if done % 3 == 0:
                    accelerator.save_state(f"checkpoints/step_{done}")
                if done == STEPS:
                    break
    digest = hashlib.sha256(f"{counter.tokens} {scheduler.get_last_lr()}".encode())
    for name, tensor in sorted(accelerator.unwrap_model(model).state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    accelerator.print(f"weights {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
