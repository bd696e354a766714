#!/usr/bin/env python
"""Measures the space of the steps of a bf16 fine-tune, next to other ways to store them.

    .venv/bin/python bench/history.py --dir /mnt/disk/history

The demo's GPT is trained in bf16 with fp32 masters and AdamW, on text. For each learning rate,
every step of the weights is saved completely, with its changed pages, and with deltas. The same
steps are compressed with zstd, ZipNN, and as XOR with the step before. build/bin/cairn_delta_bench
measures the time of the codec.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools" / "demo"))

import numpy
import torch
import zipnn
import zstandard
from common import report
from common.measure import bytes_in, first_difference
from common.states import Tensors, byte_view, total_bytes
from gpt import GPT, Config, next_batch, read_documents

import cairn

GROWING = ("segments", "tables", "roots", "pages")
"""Folders of a store: all but the lease and the hint."""
RATES = (3e-7, 1e-6, 2e-6, 4e-6, 1e-5, 3e-5, 1e-4)
WAYS: dict[str, dict[str, Any]] = {
    "full save": {"tuning": cairn.SaveTuning(incremental=False)},
    "changed pages": {},
    "deltas": {"tuning": cairn.SaveTuning(deltas=64)},
}


class FineTune:
    """A GPT in bf16 whose fp32 masters AdamW updates."""

    def __init__(self, width: int, layers: int) -> None:
        torch.manual_seed(1)
        random.seed(1)
        self._model = GPT(Config(width=width, layers=layers, dropout=0.0))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)
        self._text = torch.cat(read_documents())

    def train(self, steps: int, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        for _ in range(steps):
            masters = [parameter.detach().clone() for parameter in self._model.parameters()]
            with torch.no_grad():  # the forward and backward pass use the bf16 weights
                for parameter in self._model.parameters():
                    parameter.copy_(parameter.bfloat16())
            loss = self._model.loss(next_batch(self._text))
            self._optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter, master in zip(self._model.parameters(), masters):
                    parameter.copy_(master)
            self._optimizer.step()

    def weights(self) -> Tensors:
        return {name: value.detach().bfloat16() for name, value in self._model.named_parameters()}


def compressed(before: Tensors, after: Tensors) -> dict[str, int]:
    """The bytes of other ways to store a step, tensor by tensor."""
    zstd = zstandard.ZstdCompressor(level=1)
    models = zipnn.ZipNN(method="AUTO", input_format="byte", threads=1)
    ways: dict[str, Callable[[str], Any]] = {
        "zstd-1": lambda name: zstd.compress(byte_view(after[name])),
        "ZipNN": lambda name: models.compress(byte_view(after[name]).tobytes()),
        "XOR, zstd-1": lambda name: zstd.compress(
            numpy.bitwise_xor(byte_view(before[name]), byte_view(after[name]))
        ),
    }
    names = [name for name in after if after[name].numel() % 4 == 0]
    return {way: sum(len(encode(name)) for name in names) for way, encode in ways.items()}


def changed_share(before: Tensors, after: Tensors) -> float:
    counts = [(before[n].view(torch.int16) != after[n].view(torch.int16)).sum() for n in after]
    return float(sum(counts)) / sum(tensor.numel() for tensor in after.values())


def measure(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Bytes that each way has added to the files of its store, by learning rate and step. Each step
    is loaded again and compared."""
    training = FineTune(options.width, options.layers)
    training.train(options.warm_up, 3e-4)
    rows = []
    for rate in options.rates:
        training.train(options.settle, rate)
        base = folder / f"{rate:g}"
        stores = {way: cairn.open(base / way, mode="a") for way in WAYS}
        before = training.weights()
        for store in stores.values():
            store.save(0, before)
        for step in range(1, options.steps + 1):
            training.train(1, rate)
            state = training.weights()
            row = {"rate": rate, "changed": changed_share(before, state)}
            row["bytes"] = total_bytes(state)
            for way, store in stores.items():
                files = bytes_in(base / way, GROWING)
                store.save(step, state, **WAYS[way])
                row[way] = bytes_in(base / way, GROWING) - files
                wrong = first_difference(store.read(step=step, flat=True), state)
                assert wrong is None, (way, wrong)
            rows.append(row | compressed(before, state))
            before = state
            print(f"rate {rate:g}: {row['changed']:.2%} changed", file=sys.stderr, flush=True)
        for store in stores.values():
            store.close()
        shutil.rmtree(base)
    return rows


def write(result: dict[str, Any], out: Path) -> None:
    steps = result["steps"]
    ways = [name for name in steps[0] if name not in ("rate", "changed", "bytes")]
    rows = [
        [f"{row['rate']:g}", f"{row['changed']:.2%}", report.size(row["bytes"]),
         *(f"{row['bytes'] / row[way]:.1f}×" for way in ways)]
        for row in steps
    ]  # fmt: skip
    head = ("learning rate", "elements changed", "state", *ways)
    parts = ["How many times fewer bytes than the state:", report.table(head, rows)]
    report.write(out / "history", "A history of steps", result, parts)


def main() -> None:
    parser = report.options(__doc__)
    add = parser.add_argument
    add("--width", type=int, default=768, help="width of the GPT (768)")
    add("--layers", type=int, default=8, help="layers of the GPT (8)")
    add("--warm-up", type=int, default=30, help="steps before the fine-tune (30)")
    add("--settle", type=int, default=4, help="steps with each learning rate before it counts (4)")
    add("--steps", type=int, default=3, help="saved steps per learning rate (3)")
    add("--rates", type=float, nargs="*", default=RATES, help="learning rates")
    options = report.parse(parser)
    with tempfile.TemporaryDirectory(prefix="history-", dir=options.dir) as folder:
        steps = measure(Path(folder), options)
    about = report.describe(options.dir, ("zipnn", "zstandard"))
    write(about | {"steps": steps}, options.out)


if __name__ == "__main__":
    main()
