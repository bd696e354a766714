"""A training script as a user would write it: trains the GPT, saves with Cairn, and resumes.

    train.py --steps 120                                            no checkpoints
    train.py --steps 120 --store DIR --save-every 20                saves; resumes if DIR has steps
    train.py ... --die-during-save 80                               SIGKILL while step 80 is written

Writes one JSON line per step to --log: the loss (as a hexadecimal float, which shows every bit)
and, for saves, their cost.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch

from crash import kill_during_save
from gpt import GPT, Config, next_batch, read_documents


class Run:
    """Everything that a step changes, and therefore everything that a checkpoint must contain."""

    def __init__(self, total_steps: int):
        self.config = Config()
        self.model = GPT(self.config)
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

    def resume(self, store) -> None:
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

    def forward_backward(self, text: torch.Tensor) -> float:
        loss = self.model.loss(next_batch(text, self.config.context + 1))
        self.optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--die-during-save", type=int)
    args = parser.parse_args()

    # Makes every run compute the same numbers, regardless of the load of the machine.
    torch.manual_seed(7)
    random.seed(7)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)

    text = torch.cat(list(read_documents().values()))
    run = Run(args.steps)
    store = pending = None
    if args.store:
        import cairn

        store = cairn.open(args.store, mode="a")
        if store.steps():
            run.resume(store)

    log = args.log.open("a", buffering=1)
    while run.step < args.steps:
        loss = run.forward_backward(text)
        waited = 0.0
        if pending:
            # The previous save has copied tensors while this step computed its gradients.
            began = time.perf_counter()
            pending.wait_staged()  # after this call, the tensors may change
            waited = time.perf_counter() - began
        run.update()
        record = {"step": run.step, "loss": loss.hex(), "staging_wait_s": waited}

        if store and run.step % args.save_every == 0:
            if pending:
                pending.result()  # raises here if that save failed
            if args.die_during_save and run.step >= args.die_during_save:
                log.write(json.dumps({"will_die_at": run.step}) + "\n")
                kill_during_save(args.store)
            began = time.perf_counter()
            pending = store.save_async(run.step, run.state())
            record["save_call_s"] = time.perf_counter() - began
        log.write(json.dumps(record) + "\n")

    if store:
        report = pending.result()
        log.write(json.dumps({"saved": report.step, "logical_bytes": report.logical_bytes}) + "\n")
        store.close()


if __name__ == "__main__":
    main()
