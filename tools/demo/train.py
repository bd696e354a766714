"""A training as a user would write it: trains the GPT, saves with Cairn, and resumes."""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch

import cairn
from gpt import GPT, Config, next_batch, read_documents


def kill_during_save(store: Path) -> None:
    """Starts a thread that waits for payload of a new save in `store` and then kills this process:
    no signal handler, no destructor and no flush runs after SIGKILL. The save may complete first.
    """
    sys.setswitchinterval(0.0005)  # so that the watcher does not wait for the training thread
    segments = store / "segments"
    earlier = set(os.listdir(segments)) if segments.exists() else set()

    def watch() -> None:
        while True:
            for entry in os.scandir(segments) if segments.exists() else ():
                if entry.name not in earlier and entry.stat().st_size > 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.0002)

    threading.Thread(target=watch, daemon=True).start()


class Run:
    """Everything that a step changes, and therefore everything that a checkpoint must contain."""

    def __init__(self, total_steps: int):
        self.model = GPT(Config())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, betas=(0.9, 0.95))
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=2e-3, total_steps=total_steps + 1, pct_start=0.2
        )
        self.step = 0

    def state(self) -> dict:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": {"torch": torch.get_rng_state(), "python": random.getstate()},
            "step": self.step,
        }

    def resume(self, store: cairn.Store) -> None:
        """Continues from the latest committed step. The weights are read directly into the
        memory of the model; the rest is returned as the nested dict that was saved, with its types.
        """
        store.load({"model": self.model.state_dict()}, strict=False)
        saved = store.read(["optimizer", "scheduler", "rng", "step"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        torch.set_rng_state(saved["rng"]["torch"])
        random.setstate(saved["rng"]["python"])
        self.step = saved["step"]


def train(
    steps: int, log: Path, path: Path | None = None, save_every: int = 0, die_at: int | None = None
) -> None:
    """Trains from the latest step of the store at `path`, and saves there. `die_at`: is killed
    while this step, or a later one, is saved.

    Adds a JSON line per step to `log`: the loss (as a hexadecimal float, which shows every bit)
    and, for saves, how long they stopped the training.
    """
    # Makes every run compute the same numbers, regardless of the load of the machine.
    torch.manual_seed(7)
    random.seed(7)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)

    text = torch.cat(read_documents())
    run = Run(steps)
    store = cairn.open(path, mode="a") if path else None
    if store and store.steps():
        run.resume(store)
    pending = None
    lines = log.open("a", buffering=1)
    while run.step < steps:
        loss = run.model.loss(next_batch(text))
        run.optimizer.zero_grad()
        loss.backward()
        record = {"step": run.step + 1, "loss": loss.item().hex()}
        if pending:
            # The previous save has copied tensors while this step computed its gradients.
            began = time.perf_counter()
            pending.wait_staged()  # after this call, the tensors may change
            record["staging_wait_s"] = time.perf_counter() - began
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        run.scheduler.step()
        run.step += 1

        if store and run.step % save_every == 0:
            if pending:
                pending.result()  # raises here if that save failed
            if die_at and run.step >= die_at:
                lines.write(json.dumps({"will_die_at": run.step}) + "\n")
                kill_during_save(path)
            began = time.perf_counter()
            pending = store.save_async(run.step, run.state())
            record["save_call_s"] = time.perf_counter() - began
        lines.write(json.dumps(record) + "\n")
    if store:
        lines.write(json.dumps({"logical_bytes": pending.result().logical_bytes}) + "\n")
        store.close()
