"""Writes docs/performance/comparison.md, and makes the tables that are printed."""

from __future__ import annotations

import statistics
from typing import Any

from compare_lib import machine

from libraries_lib.contenders import CONTENDERS

Rows = list[list[str]]
TIMES = {
    "save_all": "save, all changed",
    "save_part": "save, 1 % changed",
    "load": "load, cold",
    "load_warm": "load, cached",
    "load_one": "one tensor of 4 MiB, cold",
    "load_rows": "a quarter of the rows, cold",
    "load_columns": "a quarter of the columns, cold",
    "reshard": "JAX: rows to columns, cold",
}
OUTCOMES = {
    "new": "the new state",
    "old": "the old state",
    "damaged": "a checkpoint that does not load",
    "nothing": "no checkpoint",
}
FLIPPED = {"error": "an error", "wrong": "wrong values", "none": "right values", "crash": "a crash"}

INTRODUCTION = """# Which library when: the measurements

Measured on {measured} by `{command}`. Every run is in
[comparison.json](comparison.json), and [comparison.md](../comparison.md) states what follows.

Machine: {machine}.{note}
The average number of running processes was {load[0]:.1f} before the measurement and {load[1]:.1f}
at its end (15 minutes), so compare the libraries with each other, and not with another machine.

Versions: {versions}.

The state has {tensors} float32 tensors with random values, {mebibytes:.0f} MiB. Times are medians
of {repeat} runs, in which the libraries take turns. Each run is a new process that has saved, or
loaded, once before it is measured.

{remarks}

## Time

In ms, lower is better; the ratio to Cairn is in parentheses. Saves include the time to sync what
the library has not synced itself, so that all of them are durable. Before a cold load, no file is
in the page cache; before a cached one, all are. Loads end when every page of the result has been
touched. The rows or columns are those that the second of four ranks has of each matrix. With JAX, a
state whose rows were divided among four devices is loaded with its columns divided.

{times}

Orbax loads parts of arrays by devices and processes; one process cannot ask for a quarter of them.
"""
BYTES = """
## Space and reads

The bytes of all files after the first save, and after the second one, in which 1 % of a state of 24
layers would have changed (three matrices), and the numbers of files. The bytes read are those that
the process reads from the disk during the cold loads, divided by the bytes that are asked for.

{bytes}
"""
KILLS = """
## Killed saves

{kills} processes are killed at evenly spaced moments of a save in which all values change. Then a
new process asks the library for the latest checkpoint and loads it. A new step has another number
than the steps before; a replacement has the number of the only checkpoint. *Finished* saves ended
before the kill. *Bytes left* are those beyond the complete steps after one more save, as a share of
a step (median).

{table}
"""
FLIPS = """
## Flipped bits

One bit of a checkpoint of {mebibytes:.0f} MiB is flipped at a time, {flips} times at random
positions of all files, and as often in the records (headers, indexes, metadata), each of which is
equally likely. The table contains what a load of everything gives. *Right values* are bits that the
load does not use.

{table}
"""


def _median(runs: list[dict[str, Any]], figure: str, field: str) -> float | None:
    values = [run[figure][field] for run in runs if figure in run]
    return statistics.median(values) if values else None


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_rows(libraries: dict[str, Any]) -> Rows:
    rows = [["", *(library["title"] for library in libraries.values())]]
    for figure, title in TIMES.items():
        field = "durable" if figure.startswith("save") else "seconds"
        found = {
            name: _median(library["runs"], figure, field) for name, library in libraries.items()
        }
        cairn = found.get("cairn")
        cells = []
        for name, seconds in found.items():
            if seconds is None:
                cells.append("–")
                continue
            ratio = f" ({seconds / cairn:.3g}×)" if cairn and name != "cairn" else ""
            cells.append(_short(seconds * 1e3) + ratio)
        rows.append([title, *cells])
    return rows


def byte_rows(libraries: dict[str, Any]) -> Rows:
    rows = [["", *(library["title"] for library in libraries.values())]]
    for space, title in ("space_1", "one step"), ("space_2", "two steps"):
        for field, unit in ("bytes", "MB"), ("files", "files"):
            cells = []
            for library in libraries.values():
                value = _median(library["runs"], space, field) or 0
                cells.append(_short(value / 1e6 if field == "bytes" else value))
            rows.append([f"{title}, {unit}", *cells])
    for figure in ("load", "load_one", "load_rows", "load_columns"):
        cells = []
        for library in libraries.values():
            read, wanted = (_median(library["runs"], figure, f"{what}_bytes")
                            for what in ("read", "wanted"))  # fmt: skip
            cells.append("–" if read is None or not wanted else f"{read / wanted:.3g}")
        rows.append([f"read, {TIMES[figure]}", *cells])
    return rows


def kill_rows(libraries: dict[str, Any]) -> Rows:
    rows = [["", "save", *OUTCOMES.values(), "finished", "bytes left"]]
    for library in libraries.values():
        for field, title in ("kill_new", "a new step"), ("kill_replace", "a replacement"):
            if field not in library:
                continue
            outcomes = library[field]["outcomes"]
            cells = [str(outcomes.get(one, 0)) for one in (*OUTCOMES, "finished")]
            share = f"{library[field]['left'] * 100:.0f} %" if field == "kill_new" else "–"
            rows.append([library["title"], title, *cells, share])
    return rows


def flip_rows(libraries: dict[str, Any]) -> Rows:
    rows = [["", "flipped in", *FLIPPED.values()]]
    for library in libraries.values():
        for part, title in ("all", "all bytes"), ("records", "the records"):
            outcomes = library["flip"][part]
            rows.append([library["title"], title, *(str(outcomes.get(one, 0)) for one in FLIPPED)])
    return rows


def tables(result: dict[str, Any]) -> dict[str, Rows]:
    libraries = result["libraries"]
    return {
        "times": time_rows(libraries),
        "bytes": byte_rows(libraries),
        "kills": kill_rows(libraries),
        "flips": flip_rows(libraries),
    }


def _markdown(rows: Rows, texts: int = 1) -> str:
    """The first `texts` columns are text."""
    rule = ["---"] * texts + ["---:"] * (len(rows[0]) - texts)
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], rule, *rows[1:]])


def page(result: dict[str, Any]) -> str:
    found = tables(result)
    libraries, options = result["libraries"], result["options"]
    heading = machine.heading(result | {"measured": {}})
    remarks = "\n".join(f"- *{CONTENDERS[name].title}*: {CONTENDERS[name].remark}"
                        for name in libraries)  # fmt: skip
    text = INTRODUCTION.format(
        **{**result, **heading, "measured": result["measured"]}, **options | result["state"],
        remarks=remarks, times=_markdown(found["times"]),
    )  # fmt: skip
    text += BYTES.format(bytes=_markdown(found["bytes"]))
    text += KILLS.format(kills=options["kills"], table=_markdown(found["kills"], 2))
    return text + FLIPS.format(
        flips=options["flips"], mebibytes=result["state"]["flip_mebibytes"],
        table=_markdown(found["flips"], 2),
    )  # fmt: skip
