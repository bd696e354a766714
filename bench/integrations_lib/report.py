"""Writes docs/performance/integrations.md and integrations.json, and prints the tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from compare_lib import machine

from integrations_lib.reasons import ASYNC, INTRODUCTION, REASONS

FIGURES = {
    "stall": ("stall, ms", 1e3),
    "longest_stall": ("longest, ms", 1e3),
    "saved": ("ten saves, s", 1.0),
    "durable": ("ten saves, durable, s", 1.0),
    "resume": ("resume, ms", 1e3),
    "resume_cached": ("resume, cached, ms", 1e3),
    "bytes": ("MB of ten saves", 1e-6),
}
WORKLOADS = {"full": "All parameters are trained", "frozen": "Nine tenths of the layers are frozen"}
NAMES = {"own": "own", "cairn": "Cairn", "async": "in the background"}


class Behind(NamedTuple):
    """A figure in which Cairn is not ahead."""

    library: str
    workload: str
    rival: str
    figure: str
    ratio: float


def medians(runs: list[dict[str, float]]) -> dict[str, float]:
    """Of the repetitions; the longest stall is that of all of them."""
    found = {name: statistics.median(run[name] for run in runs) for name in FIGURES}
    return found | {"longest_stall": max(run["longest_stall"] for run in runs)}


def name_of(contender: str) -> str:
    return ", ".join(NAMES.get(part, part) for part in contender.split(", "))


def _shown(value: float, figure: str) -> str:
    scaled = value * FIGURES[figure][1]
    return f"{scaled:,.0f}" if scaled >= 100 else f"{scaled:.3g}"


def table(library: dict[str, Any], workload: str) -> list[list[str]]:
    """The header, and a row per contender. The rows of rivals contain the ratio to Cairn."""
    runs = library["workloads"][workload]
    found = {contender: medians(of_it) for contender, of_it in runs.items()}
    rows = [["", *(title for title, _ in FIGURES.values())]]
    for contender, own in found.items():
        cells = []
        for figure in FIGURES:
            cell = _shown(own[figure], figure)
            if contender in library["rivals"]:
                ratio = own[figure] / found[library["rivals"][contender]][figure]
                cell += f" ({ratio:.3g}×)"
            cells.append(cell)
        rows.append([name_of(contender), *cells])
    return rows


def behind(result: dict[str, Any]) -> Iterator[Behind]:
    """The figures in which a library's own checkpoints are ahead of Cairn's, or equal."""
    for name, library in result["libraries"].items():
        for workload, runs in library["workloads"].items():
            for rival, cairn in library["rivals"].items():
                own, ours = medians(runs[rival]), medians(runs[cairn])
                for figure in FIGURES:
                    if own[figure] <= ours[figure]:
                        ratio = own[figure] / ours[figure]
                        yield Behind(name, workload, rival, figure, ratio)


def reason_of(one: Behind) -> str | None:
    """The most specific reason that is documented."""
    kind = ASYNC if one.rival.endswith("async") else ""
    for library in (one.library, ""):
        for workload in (one.workload, ""):
            for figure in (one.figure + kind, one.figure):
                if (library, workload, figure) in REASONS:
                    return REASONS[library, workload, figure]
    return None


def _markdown(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---", *["---:"] * (len(rows[0]) - 1)], *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _section(name: str, library: dict[str, Any]) -> str:
    versions = ", ".join(f"{package} {found}" for package, found in library["versions"].items())
    text = f"## {library['title']}\n\n{library['text']} {versions}. "
    text += f"{library['parameters']:,.0f} parameters, {library['repeat']} runs of each, "
    text += f"{library['measured']}."
    for rival, cairn in library["rivals"].items():
        text += f" The ratios of *{name_of(rival)}* are to *{name_of(cairn)}*."
    text += "\n"
    for workload in library["workloads"]:
        text += f"\n{WORKLOADS[workload]}:\n\n{_markdown(table(library, workload))}\n"
    return text


def _behind_section(result: dict[str, Any]) -> str:
    reasons: dict[str, list[str]] = {}
    for one in behind(result):
        library = result["libraries"][one.library]
        what = f"{library['title']} ({one.workload}, {name_of(one.rival)}), "
        what += f"{FIGURES[one.figure][0].removesuffix(', ms').removesuffix(', s')}: "
        what += f"{one.ratio:.3g}×"
        reasons.setdefault(reason_of(one) or "**No reason is known.**", []).append(what)
    lines = [f"- {reason} Seen in: {'; '.join(where)}." for reason, where in reasons.items()]
    return "\n".join(lines) or "Cairn is ahead in all figures."


def write_page(result: dict[str, Any], folder: Path) -> None:
    (folder / "integrations.json").write_text(json.dumps(result, indent=1) + "\n")
    libraries = result["libraries"]
    heading = machine.heading(result | {"measured": {}})
    text = INTRODUCTION.format(**heading)
    text += "\n".join(_section(name, library) for name, library in libraries.items())
    text += f"\n## Where Cairn is not ahead\n\n{_behind_section(result)}\n"
    (folder / "integrations.md").write_text(text)


def print_tables(libraries: dict[str, Any]) -> None:
    for name, library in libraries.items():
        for workload in library["workloads"]:
            rows = table(library, workload)
            widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
            print(f"{name}, {workload}")
            for row in rows:
                print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
            print(flush=True)
