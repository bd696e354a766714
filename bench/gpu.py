#!/usr/bin/env python
"""Measures Cairn and its peers with tensors of PyTorch on a GPU: loads, the stall of a training
step by an asynchronous save, and the bytes that cross the bus.

    python bench/gpu.py --dir DIR loads [--bytes N] [--state transformer|experts]
    python bench/gpu.py --dir DIR stall [--bytes N]
    python bench/gpu.py --dir DIR pages [--bytes N]

Loads are compared with safetensors and torch.load, from the page cache and from the disk; the stall
with dcp.async_save and a pinned stager that is kept (PyTorch 2.11 closes it, so that a second save
fails). Loads take turns, and so do steps with and without a save; medians are compared. `kv-bench
gpu` measures what needs no PyTorch: copies and digests.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import measure
from common.library import Cairn, Library, Saving
from common.states import Tensors, total_bytes, transformer_shapes
from common.torch_libraries import Dcp, Safetensors, Torch, TorchMapped

import cairn

TRANSFORMER_BYTES = 4.4e9  # of scale 1
PAGE = 65536


def make(name: str, nbytes: float, device: str) -> Tensors:
    """Tensors of about `nbytes` with normally distributed values."""
    if name == "experts":
        shape = (128, max(8, int(nbytes / 20_000 / 256)))
        shapes = {f"experts.{i:05}.weight": (shape, torch.bfloat16) for i in range(20_000)}
    else:
        shapes = transformer_shapes(nbytes / TRANSFORMER_BYTES)
    return {
        key: torch.randn(shape, dtype=dtype, device=device)
        for key, (shape, dtype) in shapes.items()
    }


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    synchronize()
    begin = time.perf_counter()
    result = work()
    synchronize()
    return time.perf_counter() - begin, result


def show(what: str, runs: list[float], nbytes: int) -> float:
    median = statistics.median(runs)
    rate = nbytes / median / 1e9
    low, high = min(runs), max(runs)
    print(f"{what:44} {median:9.4f} s  {rate:7.2f} GB/s  {low:.4f}-{high:.4f}", flush=True)
    return median


# Loads --------------------------------------------------------------------------------------------


def ways_to_load(folder: Path, state: Tensors, device: str) -> dict[str, Callable[[], Tensors]]:
    """Saves the state with each library, and returns the ways to load it to the device."""
    targets = {key: torch.zeros_like(tensor) for key, tensor in state.items()}

    def opened(kind: type[Library]) -> Any:
        place = folder / (kind.reads or kind.name)
        place.mkdir(exist_ok=True)
        return kind(place, device)

    for kind in (Cairn, Safetensors, Torch):
        library = opened(kind)
        library.save(1, state)
        library.finish()

    def load(kind: type[Library], existing: bool = False) -> Tensors:
        library = opened(kind)
        loaded = library.load_into(1, targets) if existing else library.load(1, state)
        library.finish()
        return targets if existing else loaded

    return {
        "cairn, existing tensors": lambda: load(Cairn, existing=True),
        "cairn, new tensors": lambda: load(Cairn),
        "safetensors": lambda: load(Safetensors),
        "torch.load": lambda: load(Torch),
        "torch.load(mmap)": lambda: load(TorchMapped),
    }


def measure_loads(folder: Path, options: argparse.Namespace) -> None:
    state = make(options.state, options.bytes, options.device)
    ways = ways_to_load(folder, state, options.device)
    size = total_bytes(state)
    print(f"loads of {len(state):,} tensors, {size / 1e9:.2f} GB", flush=True)
    for cache in ("page cache", "disk"):
        runs: dict[str, list[float]] = {way: [] for way in ways}
        for run in range(options.repeat + 1):  # the first one page-locks memory: not counted
            for way, load in ways.items():
                (measure.evict if cache == "disk" else measure.warm)(folder)
                seconds, loaded = timed(load)
                if run > 0:
                    runs[way].append(seconds)
                elif cache == "disk":
                    for key, tensor in state.items():
                        assert torch.equal(loaded[key], tensor), f"{key} has other values"
                del loaded
        medians = {way: show(f"{cache}: {way}", taken, size) for way, taken in runs.items()}
        best = min(medians[way] for way in medians if not way.startswith("cairn"))
        for way in medians:
            if way.startswith("cairn"):
                print(f"ratio: {cache}, {way}: {best / medians[way]:.2f} (bar 1.2)", flush=True)


# Stall --------------------------------------------------------------------------------------------


class Training:
    """Steps that compute for a while, and then change all tensors, as an optimizer does."""

    def __init__(self, state: Tensors, seconds: float, device: str) -> None:
        size = 8192 if device == "cuda" else 256
        dtype = torch.bfloat16
        self._left, self._right, self._product = (
            torch.randn(size, size, dtype=dtype, device=device) for _ in range(3)
        )
        self._weights = [t for t in state.values() if t.dim() > 0]
        self._count = 5
        self._compute()
        taken, _ = timed(self._compute)
        self._count = max(1, round(5 * seconds / taken))

    def _compute(self) -> None:
        for _ in range(self._count):
            torch.mm(self._left, self._right, out=self._product)

    def step(self, save: Callable[[], Saving] | None = None) -> tuple[float, float, float]:
        """Returns the seconds of the step, of the call that saves (Library.begin_save), and of the
        wait before the tensors change. Sets `finish`, which waits until the save is durable."""
        synchronize()
        begin = time.perf_counter()
        staged, self.finish = save() if save else (None, None)
        called = time.perf_counter()
        self._compute()
        waiting = time.perf_counter()
        if staged:
            staged()
        waited = time.perf_counter()
        torch._foreach_add_(self._weights, 1.0)
        synchronize()
        return time.perf_counter() - begin, called - begin, waited - waiting


def copy_seconds(nbytes: int, device: str) -> float:
    """The time of one copy from the device to page-locked memory, computed from the time of 1
    GiB."""
    host = torch.empty(min(nbytes, 1 << 30), dtype=torch.uint8, pin_memory=device == "cuda")
    source = torch.ones_like(host, device=device)
    host.copy_(source)
    return timed(lambda: host.copy_(source))[0] * nbytes / host.numel()


def measure_stall(folder: Path, options: argparse.Namespace) -> None:
    state = make("transformer", options.bytes, options.device)
    size = total_bytes(state)
    copy = copy_seconds(size, options.device)
    training = Training(state, 1.5 * copy, options.device)
    training.step()
    print(f"stall with {len(state):,} tensors, {size / 1e9:.2f} GB; one copy {copy:.3f} s")
    snapshot = cairn.SaveTuning(device_snapshot=True)
    warnings.filterwarnings("ignore")  # DCP's
    for name in options.peers.split(","):
        saver = (Dcp if name == "dcp" else Cairn)(folder / name, options.device)
        saver.start(state, saves=True)
        more = {"tuning": snapshot} if name == "snapshot" else {}
        alone: list[float] = []
        times: list[tuple[float, float, float]] = []
        durable: list[float] = []
        for step in range(1, options.repeat + 2):  # the first one page-locks memory: not counted
            begin = time.perf_counter()
            taken = training.step(lambda: saver.begin_save(step, state, **more))
            if options.abandon and step > options.repeat:
                bare = training.step()[0]
                print(
                    f"{name:24} step {bare:.4f} s, with save {taken[0]:.4f} s = "
                    f"{max(0.0, taken[0] / bare - 1):.2%} of the step; call "
                    f"{taken[1] * 1e3:.2f} ms; the save was abandoned",
                    flush=True,
                )
                shutil.rmtree(folder, ignore_errors=True)
                os._exit(0)
            training.finish()
            if options.abandon:  # no step is on the disk while another one is saved
                saver.forget(step)
            elif step > 1:
                saver.forget(step - 1)
            if step == 1:
                print(f"{name}: first save {taken[0]:.3f} s, call {taken[1]:.3f} s", flush=True)
                continue
            durable.append(time.perf_counter() - begin)
            times.append(taken)
            alone.append(training.step()[0])
        whole, call, wait = (statistics.median(column) for column in zip(*times))
        bare = statistics.median(alone)
        stall = max(0.0, whole - bare)
        print(
            f"{name:24} step {bare:.4f} s, with save {whole:.4f} s, stall {stall * 1e3:.2f} ms = "
            f"{stall / bare:.2%} of the step; call {call * 1e3:.2f} ms, wait {wait * 1e3:.2f} ms, "
            f"durable after {statistics.median(durable):.2f} s",
            flush=True,
        )
        saver.finish()
        shutil.rmtree(folder / name)


# Bytes over the bus -------------------------------------------------------------------------------


def measure_pages(folder: Path, options: argparse.Namespace) -> None:
    """Saves after nothing has changed, and after one byte in every hundredth page has."""
    state = make("transformer", options.bytes, options.device)
    with cairn.open(folder / "cairn", mode="a", grace=0) as store:
        store.save(0, state)
        for step in range(1, 2 * options.repeat, 2):
            same = store.save(step, state)
            for tensor in state.values():
                tensor.view(-1).view(torch.uint8)[50 * PAGE :: 100 * PAGE] ^= 1
            changed = store.save(step + 1, state)
            for what, saved, bar in (("nothing", same, 0), ("1 % of the pages", changed, 0.011)):
                ratio = saved.device_bytes / saved.logical_bytes
                print(f"ratio: bytes over the bus, {what} changed: {ratio:.4f} (bar {bar})")


MEASUREMENTS = {"loads": measure_loads, "stall": measure_stall, "pages": measure_pages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="an empty folder is created here")
    parser.add_argument("--bytes", type=float, default=TRANSFORMER_BYTES)
    parser.add_argument("--state", choices=("transformer", "experts"), default="transformer")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peers", default="cairn,dcp", help="separated by commas")
    parser.add_argument(
        "--abandon", action="store_true", help="stall: do not complete the last save (large states)"
    )
    parser.add_argument("part", choices=MEASUREMENTS)
    options = parser.parse_args()
    folder = options.dir / f"gpu-{options.part}"
    folder.mkdir(parents=True)
    try:
        MEASUREMENTS[options.part](folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
