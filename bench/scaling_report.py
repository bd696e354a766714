"""Writes the page and the chart of bench/scaling.py."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from compare_lib import machine

MIB = 1 << 20
AXES = {"tensors": "tensors", "ranks": "ranks", "steps": "steps", "bytes": "GiB"}
BAR = 1.05
CONSTANT = {
    "tensors": {"open", "delete a step"},
    "ranks": set(),
    "steps": {
        "commit of a small step",
        "open",
        "read the newest step",
        "delete a step",
    },
    "bytes": {"open, read 64 KiB", "delete a step"},
}
"""What should not depend on the size; everything else may be linear."""
FIGURES = {"cpu": "processor time", "memory": "memory", "metadata": "metadata"}
NOISE = {"cpu": 0.02, "memory": 8 * MIB, "metadata": 16 << 10}
"""If the figure of the largest size is smaller, there is no exponent."""
TEXT = """# How time, memory and metadata grow

Measured by `bench/scaling.py` ({measured}). Every figure is in [scaling.json](scaling.json).

Machine: {machine}.

Versions: {versions}.

![chart](scaling.png)

*processor time* is that of all threads, in user and kernel mode. *memory* is the highest resident
memory during the operation beyond that at its start; for `read`, this includes the new tensors.
*metadata* is what the operation added to tables, roots and pages of steps. An exponent *e* means
that the figure grows as the size to the power of *e*; it is fitted to the sizes from a hundredth of
the largest on. It is not stated if the last figure is below {cpu_noise:.0f} ms, {memory_noise} MiB
or {metadata_noise} KiB. The limit is {bar}; what is marked with ★ should be constant.

{sections}
"""
KNOWN = """
What is known of the curves:

- The time per chunk of rank 0 grows when the records of a step exceed 192 MiB (1.3 million chunks):
  it then writes what does not fit to temporary objects and merges them from there. Merging ranks
  (`merging_ranks=`) share this work.
- The plan of the save before is used for up to 1,048,576 tensors, for which it takes 1.3 KB of
  memory per tensor between saves. Larger states are planned by each save.
- The first read after an open reads the structure of the state, whose length is linear in the
  number of tensors, but decodes only the path to the tensor. Later reads of the same or an equal
  structure do not read it. What shares the last block of records with the structure (the values and
  the last chunks) is decompressed together with it.
- A delete visits the entries of all steps, and a root has the numbers of all steps: both are linear
  in the steps, with a small factor (0.1 µs and 0.1 bytes per step).
- A diff takes 0.2 KB of memory per tensor. At 10,000 tensors, memory that the process has freed
  before suffices, which raises the exponent."""
AXIS_TEXT = {
    "tensors": "A state of tensors with 16 bytes each, on one rank.",
    "ranks": "What one rank does for a step of a simulated job, in which each rank has 128 chunks. "
    "With 8 *merging ranks*, each was measured alone, and the figure is that of the busiest.",
    "steps": "A store with so many steps of a small state.",
    "bytes": "Tensors of 256 MiB, durably saved and read from the disk. A load reads one tensor "
    "after another into the same memory.",
}


def exponent(points: list[tuple[int, float]], noise: float) -> float | None:
    """The slope in logarithms, fitted to the sizes from a hundredth of the largest on."""
    largest = max(size for size, _ in points)
    used = [
        (math.log(size), math.log(value))
        for size, value in points
        if size * 100 >= largest and value > 0
    ]
    if len(used) < 2 or points[-1][1] < noise:
        return None
    mean_x = sum(x for x, _ in used) / len(used)
    mean_y = sum(y for _, y in used) / len(used)
    above = sum((x - mean_x) * (y - mean_y) for x, y in used)
    return above / sum((x - mean_x) ** 2 for x, _ in used)


def _text(figure: str, value: float) -> str:
    if figure == "cpu":
        return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"
    return f"{value / MIB:.1f} MiB" if value >= MIB else f"{value / 1024:.1f} KiB"


def _series(points: list[dict[str, Any]], name: str, figure: str) -> list[tuple[int, float]]:
    return [
        (point["size"], point["figures"][name][figure])
        for point in points
        if figure in point["figures"].get(name, {})
    ]


def _section(axis: str, points: list[dict[str, Any]]) -> list[str]:
    sizes = [point["size"] for point in points]
    lines = [f"## {AXES[axis].capitalize() if axis != 'bytes' else 'Bytes'}", "", AXIS_TEXT[axis]]
    for figure, title in FIGURES.items():
        rows = []
        for name in points[-1]["figures"]:
            series = _series(points, name, figure)
            if not series or max(value for _, value in series) < NOISE[figure] / 4:
                continue
            slope = exponent(series, NOISE[figure])
            mark = " ★" if name in CONSTANT[axis] else ""
            by_size = dict(series)
            cells = [_text(figure, by_size[size]) if size in by_size else "" for size in sizes]
            cells += ["–" if slope is None else f"{slope:.2f}"]
            rows.append(f"| {name}{mark} | " + " | ".join(cells) + " |")
        if rows:
            unit = " GiB" if axis == "bytes" else ""
            head = f"| {title} | " + " | ".join(f"{size:,}{unit}" for size in sizes)
            lines += ["", head + " | exponent |", "| --- | " + "---: | " * (len(sizes) + 1), *rows]
    return lines


def exponents(result: dict[str, Any]) -> list[tuple[str, str, str, float]]:
    """Axis, operation, figure and exponent of everything that has one."""
    found = []
    for axis, points in result["points"].items():
        for name in points[-1]["figures"]:
            for figure in FIGURES:
                series = _series(points, name, figure)
                slope = exponent(series, NOISE[figure]) if series else None
                if slope is not None:
                    found.append((axis, name, figure, slope))
    return found


def _summary(result: dict[str, Any]) -> list[str]:
    found = exponents(result)
    above = [row for row in found if row[3] > BAR]
    lines = ["## Summary", ""]
    lines.append(f"{len(found)} exponents, of which {len(found) - len(above)} are at most {BAR}.")
    for axis, name, figure, slope in above:
        lines.append(f"- Above the limit: {FIGURES[figure]} of *{name}* by {axis}: {slope:.2f}.")
    for axis, name, figure, slope in found:
        if name in CONSTANT[axis] and slope > 0.1:
            lines.append(f"- Not constant: {FIGURES[figure]} of *{name}* by {axis}: {slope:.2f}.")
    return lines + KNOWN.splitlines()


def _draw(result: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8))
    for axis, plot in zip(AXES, axes.flat):
        points = result["points"][axis]
        for name in points[-1]["figures"]:
            series = _series(points, name, "cpu")
            plot.plot([x for x, _ in series], [y for _, y in series], marker="o", label=name)
        plot.set_xscale("log")
        plot.set_yscale("log")
        plot.set_xlabel(AXES[axis])
        plot.set_ylabel("processor time, s")
        plot.legend(fontsize=7)
        plot.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write_report(result: dict[str, Any], folder: Path) -> None:
    """Writes scaling.md and scaling.png to `folder`."""
    from scaling_model import model_lines

    _draw(result, folder / "scaling.png")
    sections = _summary(result)
    for axis, points in result["points"].items():
        sections += ["", *_section(axis, points)]
    sections += ["", *model_lines(result)]
    text = TEXT.format(
        **machine.heading(result),
        cpu_noise=1e3 * NOISE["cpu"],
        memory_noise=NOISE["memory"] // MIB,
        metadata_noise=NOISE["metadata"] >> 10,
        bar=BAR,
        sections="\n".join(sections),
    )
    (folder / "scaling.md").write_text(text)
