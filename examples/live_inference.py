"""A trainer and an inference process share one store, and the inference follows the trainer.

    python examples/live_inference.py train runs/live --steps 200
    python examples/live_inference.py serve runs/live --until 200     # in another terminal

The trainer saves a step every few updates. The inference process waits for the next step, reads
only the pages that have changed since the step that its model contains, and evaluates the model. It
needs no write access, and may start before the trainer and run on any machine that sees the store
(`s3://BUCKET/PREFIX` works, too). Half of the layers are frozen, so that they are never read again.
"""

from __future__ import annotations

import argparse
import time

import torch

import cairn


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 2048),  # frozen
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 2048),  # frozen
        torch.nn.ReLU(),
        torch.nn.Linear(2048, 1),
    )


def batch_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(128, 64, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.sum(1, keepdim=True).sin()


def train(store: cairn.Store, steps: int, every: int, pause: float) -> None:
    model = make_model()
    for layer in (model[0], model[2]):
        layer.requires_grad_(False)
    optimizer = torch.optim.Adam(model[4].parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        inputs, wanted = batch_of(step)
        loss = (model(inputs) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % every == 0 or step == steps:
            report = store.save(step, {"model": model, "loss": loss.item()})
            store.prune(keep_last=4)
            written = report.written_bytes / 1024
            print(f"step {step}: loss {loss.item():.4f}, {written:.0f} KiB written", flush=True)
            time.sleep(pause)


@torch.no_grad()
def serve(store: cairn.Store, until: int, timeout: float) -> None:
    served = {"model": make_model(), "loss": 0.0}
    at = store.wait(timeout=timeout)
    if at is None:
        raise SystemExit(f"no step within {timeout} s")
    store.load(served, step=at)
    while True:
        inputs, wanted = batch_of(0)
        error = (served["model"](inputs) - wanted).square().mean().item()
        print(f"serving step {at}: error {error:.4f}", flush=True)
        if at >= until:
            return
        newest = store.wait(after=at, timeout=timeout)
        if newest is None:
            raise SystemExit(f"no step after {at} within {timeout} s")
        try:
            report = store.pull(served, since=at, step=newest)
            at = report.step
            print(f"pulled {len(report.changed)} keys, {report.bytes_read / 1024:.0f} KiB read")
        except cairn.NotFound:  # the trainer has deleted one of the steps in the meantime
            at = store.load(served).step
            print("loaded completely")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    roles = parser.add_subparsers(dest="role", required=True)
    trainer = roles.add_parser("train", help="trains and saves")
    trainer.add_argument("store", help="address of the store")
    trainer.add_argument("--steps", type=int, default=200)
    trainer.add_argument("--every", type=int, default=10, help="number of steps between saves")
    trainer.add_argument("--pause", type=float, default=0.2, help="seconds after a save")
    server = roles.add_parser("serve", help="follows the trainer")
    server.add_argument("store", help="address of the store")
    server.add_argument("--until", type=int, default=200, help="the step at which it ends")
    server.add_argument("--timeout", type=float, default=60, help="seconds without a new step")
    arguments = parser.parse_args()

    if arguments.role == "train":
        with cairn.open(arguments.store, mode="a") as store:
            train(store, arguments.steps, arguments.every, arguments.pause)
        return
    deadline = time.monotonic() + arguments.timeout
    while True:
        try:
            reader = cairn.open(arguments.store)
            break
        except cairn.NotFound:  # the trainer has not created the store yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    with reader:
        serve(reader, arguments.until, arguments.timeout)


if __name__ == "__main__":
    main()
