#!/usr/bin/env python
"""Compares asynchronous saves of a model on a GPU: Cairn and dcp.async_save with its pinned stager.

    .venv/bin/python bench/compare_gpu.py --dir /mnt/disk --bytes 4GiB

Both save the same tensors, all of which have changed, in the same simulated training: each step
multiplies a matrix for longer than a copy of the tensors to the host takes, then changes all
tensors in place. The program measures the stall (how much longer a step with a save takes than
one without) and the time from the call until the step is durable. If PyTorch finds no GPU, or the
package cannot be imported, the program prints the reason and exits with status 77.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "build" / "python"))  # an installed package has precedence

CANNOT = 77
"""Exit status of a skipped program, as in automake and Meson."""
STEPS = 6
LARGE_TENSORS = 32
SMALL_TENSORS = 400
SMALL_ELEMENTS = 2048
DCP_THREADS = 2

Staged = Callable[[], None]
Durable = Callable[[], None]


def why_not() -> str | None:
    """Returns why nothing can be measured here, or None."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return "torch.cuda finds no GPU"
    try:
        import cairn
    except ImportError as error:
        return (
            f"the Python package cannot be imported by Python "
            f"{sys.version_info.major}.{sys.version_info.minor}: {error}"
        )
    del cairn
    return None


def parse_bytes(text: str) -> int:
    for suffix, factor in (
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
        ("", 1),
    ):
        if text.endswith(suffix):
            return int(float(text.removesuffix(suffix)) * factor)
    raise AssertionError("the last suffix is empty")


def make_state(total_bytes: int) -> dict[str, Any]:
    """Creates a few large and many small tensors of float32 on the GPU."""
    import torch

    large = max(1, total_bytes // 4 - SMALL_TENSORS * SMALL_ELEMENTS) // LARGE_TENSORS
    state = {
        f"layers.{i}.weight": torch.rand(large, device="cuda")
        for i in range(LARGE_TENSORS)
    }
    for i in range(SMALL_TENSORS):
        state[f"layers.{i}.norm"] = torch.rand(SMALL_ELEMENTS, device="cuda")
    return state


class Training:
    """Simulated training: steps multiply matrices for `seconds`, then change all tensors."""

    def __init__(self, state: dict[str, Any], seconds: float) -> None:
        import torch

        self._state = list(state.values())
        self._matrix = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
        self._out = torch.empty_like(self._matrix)
        self._count = 1
        self._compute()  # loads the library
        torch.cuda.synchronize()
        self._count = 20
        begin = time.perf_counter()
        self._compute()
        torch.cuda.synchronize()
        self._count = 1 + int(seconds / ((time.perf_counter() - begin) / self._count))

    def _compute(self) -> None:
        import torch

        for _ in range(self._count):
            torch.mm(self._matrix, self._matrix, out=self._out)

    def step(self, save: Callable[[], Staged] | None = None) -> float:
        """Returns seconds until the GPU is idle. Calls the result of `save` before changes."""
        import torch

        begin = time.perf_counter()
        staged = save() if save else None
        self._compute()
        if staged:
            staged()
        torch._foreach_add_(self._state, 1.0)
        torch.cuda.synchronize()
        return time.perf_counter() - begin


def copy_seconds(state: dict[str, Any]) -> float:
    """Estimates how long PyTorch takes to copy all tensors to page-locked memory."""
    import torch

    sample = max(state.values(), key=lambda tensor: tensor.numel())
    host = torch.empty_like(sample, device="cpu", pin_memory=True)
    host.copy_(sample, non_blocking=True)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    host.copy_(sample, non_blocking=True)
    torch.cuda.synchronize()
    each = time.perf_counter() - begin
    return each * sum(tensor.nbytes for tensor in state.values()) / sample.nbytes


class Cairn:
    name = "cairn"

    def __init__(self, directory: Path) -> None:
        import cairn

        # Nobody reads the steps that are deleted, and their files would fill the disk.
        self._store = cairn.open(directory / "cairn", mode="a", grace=0)
        self._numbers = itertools.count(1)

    def save(self, state: dict[str, Any]) -> tuple[Staged, Durable]:
        import torch

        handle = self._store.save_async(next(self._numbers), state)
        return lambda: handle.wait_staged(torch.cuda.current_stream()), handle.result

    def forget(self) -> None:
        self._store.prune(keep_last=1)

    def close(self) -> None:
        self._store.close()


class Dcp:
    """FileSystemWriter with synced files and a sync of the directory, which a durable step needs.
    The stager keeps its pinned memory and copies in a separate thread, its fastest setting."""

    name = "dcp.async_save"

    def __init__(self, directory: Path) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self._directory = directory / "dcp"
        self._directory.mkdir()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=True,
                use_shared_memory=False,
                use_async_staging=True,
                use_non_blocking_copy=True,
            )
        )
        self._numbers = itertools.count(1)

    def save(self, state: dict[str, Any]) -> tuple[Staged, Durable]:
        import torch.distributed.checkpoint as dcp

        path = self._directory / str(next(self._numbers))
        writer = dcp.FileSystemWriter(path, thread_count=DCP_THREADS, sync_files=True)
        response = dcp.async_save(
            state, storage_writer=writer, async_stager=self._stager, no_dist=True
        )

        def durable() -> None:
            response.upload_completion.result()
            for place in (path, self._directory):
                file = os.open(place, os.O_RDONLY)
                os.fsync(file)
                os.close(file)

        return response.staging_completion.result, durable

    def forget(self) -> None:
        for path in sorted(self._directory.iterdir(), key=lambda path: int(path.name))[
            :-1
        ]:
            shutil.rmtree(path)

    def close(self) -> None:
        self._stager.close()


def step_with_save(
    peer: Any, state: dict[str, Any], training: Training
) -> tuple[float, float, float]:
    """Returns the seconds of the step, of the save call, and until the saved step is durable."""
    waits: list[Durable] = []
    call = 0.0
    begin = time.perf_counter()

    def save() -> Staged:
        nonlocal call
        staged, durable = peer.save(state)
        call = time.perf_counter() - begin
        waits.append(durable)
        return staged

    step = training.step(save)
    waits[0]()
    durable = time.perf_counter() - begin
    peer.forget()  # deletes all but the last step: each is as large as the state
    return step, call, durable


def measure(peer: Any, state: dict[str, Any], training: Training) -> dict[str, float]:
    """Returns medians without the first step of each kind, which allocates staging memory."""
    alone = statistics.median([training.step() for _ in range(STEPS + 1)][1:])
    times = [step_with_save(peer, state, training) for _ in range(STEPS + 1)][1:]
    step, call, durable = (statistics.median(each) for each in zip(*times, strict=True))
    return {
        "step_alone_seconds": alone,
        "step_seconds": step,
        "stall_seconds": max(0.0, step - alone),
        "call_seconds": call,
        "durable_seconds": durable,
    }


def bars(cairn: dict[str, float], dcp: dict[str, float]) -> list[dict[str, Any]]:
    rows = []
    for name, what in (
        ("stall_seconds", "stall"),
        ("durable_seconds", "time to durable"),
    ):
        # If neither of them stalls, the stall is not shorter.
        ratio = cairn[name] / dcp[name] if dcp[name] > 0 else float(cairn[name] > 0)
        rows.append(
            {
                "what": "bar",
                "of": f"{what}, save_async",
                "to": "dcp.async_save",
                "figure": cairn[name],
                "limit": dcp[name],
                "unit": "s",
                "ratio": ratio,
                "bar": 1,
                "bar_is": "at most",
                "met": cairn[name] < dcp[name],
            }
        )
    return rows


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    import torch

    torch.manual_seed(1)
    state = make_state(parse_bytes(options.bytes))
    training = Training(state, 1.5 * copy_seconds(state))
    rows: list[dict[str, Any]] = []
    measured = {}
    with tempfile.TemporaryDirectory(
        dir=options.dir, prefix="cairn-compare-gpu-"
    ) as scratch:
        for kind in (Cairn, Dcp):
            peer = kind(Path(scratch))
            measured[peer.name] = measure(peer, state, training)
            peer.close()
            shutil.rmtree(
                Path(scratch) / peer.name.partition(".")[0], ignore_errors=True
            )
            rows.append(
                {
                    "what": peer.name,
                    "bytes": sum(t.nbytes for t in state.values()),
                    "torch": torch.__version__,
                    **measured[peer.name],
                }
            )
    return rows + bars(measured[Cairn.name], measured[Dcp.name])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dir", type=Path, required=True, help="working directory; its new files are removed"
    )
    parser.add_argument("--bytes", default="1GiB", help="size of all tensors (1GiB)")
    parser.add_argument("--json", action="store_true", help="one JSON object per row")
    parser.add_argument(
        "--check", action="store_true", help="only check whether it can run here"
    )
    options = parser.parse_args()
    if reason := why_not():
        print(f"compare_gpu: skipped: {reason}", file=sys.stderr)
        return CANNOT
    if options.check:
        return 0
    for row in run(options):
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            print(
                ", ".join(
                    f"{name} {value:.6g}"
                    if isinstance(value, float)
                    else f"{name} {value}"
                    for name, value in row.items()
                ),
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
