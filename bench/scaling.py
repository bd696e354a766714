#!/usr/bin/env python
"""Measures how time, memory and metadata grow with tensors, ranks and steps.

    .venv/bin/python bench/scaling.py --dir /dev/shm/scaling

1. tensors: a state of tensors of 16 bytes is saved, saved again, opened, loaded, compared, deleted
   and compacted.
2. ranks: what rank 0 does for a step of a simulated job with 128 chunks per rank.
3. steps: a save of a small step in a store of many, and opens, lists and deletes there.

Each measurement runs in a separate process. Times are processor times, in user and kernel mode,
which other work on the machine changes less than the time that passes. --dir may be without slow
syncs, such as /dev/shm, because no disk is measured.
"""

from __future__ import annotations

import ctypes
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from common import report
from common.child import run_in_child
from common.library import KV_BENCH
from common.measure import Meter, bytes_in

import cairn

Figures = dict[str, dict[str, float]]
DEADLINE_S = 3600.0
CHUNKS_PER_RANK = 128
SIZES = {
    "tensors": (1_000, 10_000, 100_000, 1_000_000),
    "ranks": (64, 256, 1_024, 4_096, 16_384, 65_536),
    "steps": (1, 10, 100, 1_000, 10_000),
}
FIGURES = {"cpu": "processor time", "memory": "memory", "metadata": "metadata"}
NOISE = {"cpu": 0.02, "memory": 8 << 20, "metadata": 16 << 10}
"""If the figure of the largest size is smaller, there is no exponent."""
METADATA = ("tables", "roots", "pages")
"""Folders of all objects that are not payload."""


class Point:
    """The figures of one size, and the store that is measured."""

    def __init__(self, folder: Path) -> None:
        self.figures: Figures = {}
        self.store = folder / "store"

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        before = bytes_in(self.store, METADATA)
        ctypes.CDLL(None).malloc_trim(0)  # what was freed would hide what small sizes need
        meter = Meter()
        yield
        spent = meter.stop()
        self.figures[name] = {
            "cpu": spent["cpu_seconds"],
            "memory": spent["peak_bytes"],
            "metadata": max(0, bytes_in(self.store, METADATA) - before),
        }


def tensors_state(count: int) -> tuple[numpy.ndarray, dict[str, torch.Tensor]]:
    """The memory of the tensors, and the state: a tensor for each row."""
    memory = numpy.arange(4 * count, dtype=numpy.float32).reshape(count, 4)
    rows = torch.from_numpy(memory).unbind()
    return memory, {f"layers.{i // 100}.{i % 100}.weight": row for i, row in enumerate(rows)}


def tensors_saves(count: int, point: Point) -> None:
    memory, state = tensors_state(count)
    with cairn.open(point.store, mode="a", grace=0) as store:
        with point.measure("save"):
            store.save(1, state)
        with point.measure("save, unchanged"):
            store.save(2, state)
        memory[::100] += 1
        with point.measure("save, 1 % changed"):
            store.save(3, state)


def tensors_reads(count: int, point: Point) -> None:
    with point.measure("open"), cairn.open(point.store) as store:
        pass
    with cairn.open(point.store) as store:
        with point.measure("read one tensor"):
            store.read(["layers.0.7.weight"], step=3)
        with point.measure("read all, new tensors"):
            loaded = store.read(step=3)
        memory, state = tensors_state(count)
        memory[::100] += 1
        assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
        with point.measure("diff of 1 %"):
            assert len(store.diff(2, 3).changed) == len(memory[::100])


def tensors_changes(count: int, point: Point) -> None:
    memory, state = tensors_state(count)
    with cairn.open(point.store, mode="a", grace=0) as store:
        memory[: count // 10 * 9] += 1
        store.save(4, state)
        with point.measure("delete a step"):
            store.delete(1)
        store.delete(2, 3)
        with point.measure("compact, a tenth lives"):
            store.compact()


def ranks_point(count: int, point: Point) -> None:
    numbers = ["--ranks", str(count), "--chunks", str(CHUNKS_PER_RANK * count)]
    command = [KV_BENCH, "commit", "--dir", point.store.parent, *numbers, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    [row] = [row for row in rows if row.get("what") == "commit"][:1]
    memory = row["peak_beyond_tensors_bytes"]
    point.figures["commit"] = {"cpu": row["cpu_seconds"], "memory": memory}


def steps_saves(count: int, point: Point) -> None:
    state = {f"layers.{i}.weight": torch.zeros(64) for i in range(8)}
    with cairn.open(point.store, mode="a", grace=0) as store:
        for step in range(1, 2 + count):
            state["layers.0.weight"] += 1
            if step <= count:
                store.save(step, state)
                continue
            with point.measure("save of a small step"):
                store.save(step, state)
        with point.measure("delete a step"):
            store.delete(count // 2 + 1)


def steps_reads(count: int, point: Point) -> None:
    with point.measure("open"), cairn.open(point.store) as store:
        pass
    with cairn.open(point.store) as store, point.measure("list all steps"):
        assert len(store.steps()) == count
    with cairn.open(point.store) as store, point.measure("read the newest step"):
        store.read()


POINTS: dict[str, tuple[Callable[[int, Point], None], ...]] = {
    "tensors": (tensors_saves, tensors_reads, tensors_changes),
    "ranks": (ranks_point,),
    "steps": (steps_saves, steps_reads),
}
"""The measurements of a point, each in a new process: memory that one has freed would make the next
appear to need less."""


def measure(axis: str, size: int, base: Path) -> Figures:
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix=f"scaling-{axis}-", dir=base) as name:
        folder = Path(name)
        log = folder / "log"
        for part in POINTS[axis]:

            def run() -> Figures:
                point = Point(folder)
                part(size, point)
                return point.figures

            found = run_in_child(run, DEADLINE_S, log)
            if "error" in found:
                raise RuntimeError(f"{axis} {size:,}: {found['error']}\n{log.read_text()[-2000:]}")
            figures |= found
    return figures


# The page -----------------------------------------------------------------------------------------


def exponent(points: list[tuple[int, float]], noise: float) -> float | None:
    """The slope in logarithms, fitted to the sizes from a hundredth of the largest on: the figure
    grows as the size to the power of it."""
    used = [
        (math.log(size), math.log(value))
        for size, value in points
        if size * 100 >= points[-1][0] and value > 0
    ]
    if len(used) < 2 or points[-1][1] < noise:
        return None
    return float(numpy.polyfit(*zip(*used), 1)[0])


def _series(points: list[dict], name: str, figure: str) -> list[tuple[int, float]]:
    return [(p["size"], p["figures"][name][figure]) for p in points
            if figure in p["figures"].get(name, {})]  # fmt: skip


def _tables(points: list[dict]) -> Iterator[str]:
    for figure, title in FIGURES.items():
        rows = []
        for name in points[-1]["figures"]:
            series = _series(points, name, figure)
            if not series or max(value for _, value in series) < NOISE[figure] / 4:
                continue
            slope = exponent(series, NOISE[figure])
            show = report.seconds if figure == "cpu" else report.size
            cells = [show(value) for _, value in series]
            rows.append([name, *cells, "–" if slope is None else f"{slope:.2f}"])
        if rows:
            sizes = [f"{point['size']:,}" for point in points]
            yield report.table((title, *sizes, "exponent"), rows)


def write(result: dict[str, Any], out: Path) -> None:
    parts: list[str] = []
    for axis, points in result["points"].items():
        parts += [f"## By {axis}", *_tables(points)]
    report.write(out / "scaling", "Growth", result, parts)


def main() -> None:
    parser = report.options(__doc__)
    add = parser.add_argument
    add("--parts", nargs="+", choices=tuple(POINTS), default=tuple(POINTS))
    add("--largest", type=int, help="leaves out larger sizes")
    options = report.parse(parser)
    result = {"points": {}} | report.describe(options.dir)
    for axis in options.parts:
        points = []
        for size in SIZES[axis]:
            if options.largest is None or size <= options.largest:
                points.append({"size": size, "figures": measure(axis, size, options.dir)})
                print(f"{axis} {size:,}: done", file=sys.stderr, flush=True)
        if points:
            result["points"][axis] = points
    write(result, options.out)


if __name__ == "__main__":
    main()
