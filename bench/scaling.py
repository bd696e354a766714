#!/usr/bin/env python
"""Measures how time, memory and metadata grow with tensors, ranks, steps and bytes.

    .venv/bin/python bench/scaling.py --dir /mnt/disk/scaling --out docs/performance

1. tensors: a state of tensors of 16 bytes is saved, saved again, opened, loaded, compared, deleted
   and compacted.
2. ranks: what rank 0 does for a step of a simulated job, and what the busiest of 8 merging ranks
   does, with 128 chunks per rank (`kv-bench commit`).
3. steps: a commit of a small step in a store of many, and opens, lists and deletes there.
4. bytes: tensors of 256 MiB are saved, saved again and loaded, one after another.

Each measurement runs in a separate process. Times are those of the processor, in user and kernel
mode, which other work on the machine changes less than the time that passes. --fast is a directory
without slow syncs, such as /dev/shm, for the parts that measure no disk.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

import numpy  # noqa: E402
import torch  # noqa: E402
from compare_lib import machine, page_cache  # noqa: E402
from compare_lib.child import run_in_child  # noqa: E402
from compare_lib.meter import Meter  # noqa: E402
from scaling_report import write_report  # noqa: E402

import cairn  # noqa: E402
from cairn.reports import DeleteReport  # noqa: E402, F401  -- otherwise, the first delete would

Figures = dict[str, dict[str, float]]
BIN = ROOT / "build" / "bin"
DEADLINE_S = 3600.0
CHUNKS_PER_RANK = 128
MERGING_RANKS = 8
TENSOR_BYTES = 256 << 20
SIZES = {
    "tensors": (1_000, 10_000, 100_000, 1_000_000),
    "ranks": (64, 256, 1_024, 4_096, 16_384, 65_536),
    "steps": (1, 10, 100, 1_000, 10_000, 100_000),
    "bytes": (1, 2, 4, 8, 16, 32),  # GiB
}


def metadata_bytes(store: Path) -> int:
    """The length of all objects that are not payload."""
    folders = ("tables", "roots", "pages")
    return sum(f.stat().st_size for name in folders for f in (store / name).glob("*"))


class Point:
    """The figures of one size."""

    def __init__(self, store: Path) -> None:
        self.figures: Figures = {}
        self._store = store

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        before = metadata_bytes(self._store)
        meter = Meter()
        yield
        spent = meter.stop()
        self.figures[name] = {
            "cpu": spent.cpu_seconds,
            "seconds": spent.seconds,
            "memory": spent.peak_bytes,
            "metadata": max(0, metadata_bytes(self._store) - before),
        }


def numbered(memory: numpy.ndarray) -> dict[str, torch.Tensor]:
    """A tensor for each row."""
    rows = torch.from_numpy(memory).unbind()
    return {f"layers.{i // 100}.{i % 100}.weight": row for i, row in enumerate(rows)}


def tensors_state(count: int) -> tuple[numpy.ndarray, dict[str, torch.Tensor]]:
    """The memory of the tensors, and the state."""
    memory = numpy.arange(4 * count, dtype=numpy.float32).reshape(count, 4)
    return memory, numbered(memory)


def tensors_saves(count: int, folder: Path) -> Figures:
    memory, state = tensors_state(count)
    point = Point(folder / "store")
    with cairn.open(folder / "store", mode="a", grace=0) as store:
        with point.measure("save"):
            store.save(1, state)
        with point.measure("save, unchanged"):
            store.save(2, state)
        memory[::100] += 1
        with point.measure("save, 1 % changed"):
            store.save(3, state)
    return point.figures


def tensors_reads(count: int, folder: Path) -> Figures:
    path = folder / "store"
    point = Point(path)
    with point.measure("open"), cairn.open(path) as store:
        pass
    with cairn.open(path) as store:
        with point.measure("read one tensor"):
            store.read(["layers.0.7.weight"], step=3)
        with point.measure("read all, new tensors"):
            loaded = store.read(step=3)
        memory, state = tensors_state(count)
        memory[::100] += 1
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
        with point.measure("diff of 1 %"):
            assert len(store.diff(2, 3).changed) == len(memory[::100])
    return point.figures


def tensors_changes(count: int, folder: Path) -> Figures:
    memory, state = tensors_state(count)
    point = Point(folder / "store")
    with cairn.open(folder / "store", mode="a", grace=0) as store:
        memory[: count // 10 * 9] += 1
        store.save(4, state)
        with point.measure("delete a step"):
            store.delete(1)
        store.delete(2, 3)
        with point.measure("compact, a tenth lives"):
            store.compact()
    return point.figures


def kv_bench(*arguments: str | Path | int) -> list[dict[str, Any]]:
    command = [BIN / "kv-bench", *map(str, arguments), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=DEADLINE_S)
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_rows(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures of rows of kv-bench, of which one process after another does the work."""
    return {
        "cpu": max(row["cpu_seconds"] for row in rows),
        "seconds": max(row["seconds"] for row in rows),
        "memory": max(row["peak_beyond_tensors_bytes"] for row in rows),
    }


def ranks_point(count: int, folder: Path) -> Figures:
    chunks = CHUNKS_PER_RANK * count
    rows = kv_bench(
        *("commit", "--dir", folder, "--ranks", count, "--chunks", chunks),
        *("--merging-ranks", MERGING_RANKS),
    )
    rows = [row for row in rows if "cpu_seconds" in row]
    divided = [row for row in rows if row["what"].startswith("rank 0")]
    result = {
        "commit, rank 0 merges": of_rows([row for row in rows if row["what"] == "commit"]),
        "commit, a merging rank": of_rows(
            [row for row in rows if row["what"].startswith("merging rank")]
        ),
        "commit, rank 0 of merging ranks": of_rows(divided),
    }
    result["commit, rank 0 of merging ranks"]["cpu"] = sum(row["cpu_seconds"] for row in divided)
    return result


def steps_point(count: int, folder: Path) -> Figures:
    rows = kv_bench("steps", "--dir", folder, "--steps", count, "--repeat", 20)
    path = folder / f"steps-{count}"
    commits = [row for row in rows if row["what"] == f"commit, {count:,} steps"]
    middle = sorted(commits, key=lambda row: row["cpu_seconds"])[len(commits) // 2]
    point = Point(path)
    point.figures["commit of a small step"] = of_rows([middle])
    newest = min((path / "roots").iterdir())
    point.figures["commit of a small step"]["metadata"] = newest.stat().st_size
    with point.measure("open"), cairn.open(path) as store:
        pass
    with cairn.open(path) as store, point.measure("list all steps"):
        assert len(store.steps()) >= count
    with cairn.open(path) as store, point.measure("read the newest step"):
        store.read()
    with cairn.open(path, mode="a", grace=0) as store:
        steps = store.steps()
        with point.measure("delete a step"):
            store.delete(steps[len(steps) // 2])
    return point.figures


def bytes_point(gib: int, folder: Path) -> Figures:
    """All tensors are maps of one file, so that a state may be larger than the memory."""
    contents = folder / "contents"
    numpy.random.default_rng(1).integers(0, 2**63, TENSOR_BYTES // 8).tofile(contents)
    count = gib * (1 << 30) // TENSOR_BYTES

    def mapped() -> torch.Tensor:
        words = TENSOR_BYTES // 8
        return torch.from_file(str(contents), shared=True, size=words, dtype=torch.int64)

    state = {f"layers.{i}.weight": mapped() for i in range(count)}
    for tensor in state.values():
        tensor[:: 4096 // 8].sum()  # its pages are then resident, and do not count as memory
    path = folder / "store"
    point = Point(path)
    with cairn.open(path, mode="a", grace=0) as store:
        with point.measure("save"):
            store.save(1, state)
        with point.measure("save, unchanged"):
            store.save(2, state)
    page_cache.evict(path)
    target = torch.zeros_like(next(iter(state.values())))
    with cairn.open(path) as store:
        with point.measure("load, cold"):
            for name in state:
                store.load({name: target}, keys=[name])
        assert torch.equal(target, next(iter(state.values())))
        with point.measure("open, read 64 KiB"):
            store.read_slice("layers.0.weight", (slice(0, 8192),))
    with cairn.open(path, mode="a", grace=0) as store, point.measure("delete a step"):
        store.delete(1)
    return point.figures


POINTS: dict[str, tuple[Callable[[int, Path], Figures], ...]] = {
    "tensors": (tensors_saves, tensors_reads, tensors_changes),
    "ranks": (ranks_point,),
    "steps": (steps_point,),
    "bytes": (bytes_point,),
}
"""The measurements of a point, each in a new process: memory that one has freed would make the next
appear to need less."""


def run_part(part: Callable[[int, Path], Figures], size: int, folder: Path) -> Figures:
    log = folder / "log"
    (figures,) = run_in_child(lambda: [part(size, folder)], DEADLINE_S, log)
    if "error" in figures:
        output = log.read_text()[-2000:]
        raise RuntimeError(f"{part.__name__} {size:,}: {figures['error']}\n{output}")
    return figures


def measure(axis: str, size: int, base: Path) -> Figures:
    folder = Path(tempfile.mkdtemp(prefix=f"scaling-{axis}-", dir=base))
    try:
        figures: Figures = {}
        for part in POINTS[axis]:
            figures |= run_part(part, size, folder)
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--dir", type=Path, required=True, help="working directory on the disk")
    add("--fast", type=Path, default=Path("/dev/shm"), help="directory without slow syncs")
    add("--out", type=Path, help="directory for scaling.md, scaling.json and scaling.png")
    add("--parts", nargs="+", choices=tuple(POINTS), default=tuple(POINTS))
    add("--add-to", type=Path, help="a scaling.json whose other parts are kept")
    add("--largest", type=int, help="leaves out larger sizes")
    options = parser.parse_args()
    for folder in filter(None, (options.dir, options.out)):
        folder.mkdir(parents=True, exist_ok=True)
    result = json.loads(options.add_to.read_text()) if options.add_to else {}
    result |= {"machine": machine.machine(options.dir), "versions": machine.versions()}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    for axis in options.parts:
        base = options.dir if axis == "bytes" else options.fast
        points = result.setdefault("points", {})[axis] = []
        for size in SIZES[axis]:
            if options.largest is not None and size > options.largest:
                continue
            points.append({"size": size, "figures": measure(axis, size, base)})
            print(f"{axis} {size:,}: done", file=sys.stderr, flush=True)
        result.setdefault("measured", {})[axis] = f"{date}, {result['versions']['cairn']}"
    if options.out is not None:
        (options.out / "scaling.json").write_text(json.dumps(result, indent=1) + "\n")
        if POINTS.keys() <= result["points"].keys():
            write_report(result, options.out)


if __name__ == "__main__":
    main()
