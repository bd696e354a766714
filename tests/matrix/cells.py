"""The cells of the matrix: what is combined, which cells are run, and which ones are refused.

A cell is one operation on one store with one kind of payload, under further conditions. `all_pairs`
returns cells in which each value of each dimension meets each value of each other dimension;
`all_cells` returns every operation on every storage with every payload.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import NamedTuple

from operations import OPERATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "matrix.md"
STORAGES = ("directory", "memory", "s3")


class Cell(NamedTuple):
    """Values of the dimensions below, and a fault."""

    operation: str
    storage: str
    payload: str
    dtype: str
    written: str
    other: str
    by: str
    handle: str
    grace: str
    cache: str
    fault: str = "none"

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


def dimensions(storages: tuple[str, ...] = STORAGES) -> dict[str, tuple[str, ...]]:
    """docs/matrix.md describes the values."""
    payloads = "host", "numpy", "cuda", "4 ranks", "tiny", "24 MiB", "empty", "nothing"
    written = "plain", "small chunks", "deltas", "compressed", "streamed", "compacted", "copied"
    return {
        "operation": tuple(OPERATIONS),
        "storage": storages,
        "payload": payloads,
        "dtype": ("float32", "bfloat16", "int64", "uint8", "complex64", "float8_e4m3fn"),
        "written": written,
        "other": storages if "directory" in storages else (*storages, "directory"),
        "by": ("python", "program"),
        "handle": ("writer", "reader"),
        "grace": ("0", "60"),
        "cache": ("off", "on"),
    }


REQUESTS = {
    "request": lambda method, path: True,
    "write": lambda method, path: method not in ("GET", "HEAD"),
    "root": lambda method, path: method == "PUT" and "/roots/" in path,
}
"""Which request the fault concerns: the first one, the first that changes something, the commit."""
FAULTS = {
    "s3": tuple(f"{which} {how}" for which in REQUESTS for how in ("busy", "denied", "lost")),
    "directory": ("no descriptors", "no space"),
}


def all_cells(storages: tuple[str, ...] = STORAGES) -> list[Cell]:
    """Every operation on every storage with every payload, under random conditions that are
    the same in each run."""
    chance = random.Random(1)
    values = list(dimensions(storages).values())
    return [
        Cell(*first, *map(chance.choice, values[3:])) for first in itertools.product(*values[:3])
    ]


_APART = (
    {("storage", "memory"), ("payload", "4 ranks")},
    {("storage", "memory"), ("by", "program")},
    {("other", "memory"), ("by", "program")},
)
"""Pairs that are refused whatever the operation is, and would hide the other pairs of a cell."""


def all_pairs(storages: tuple[str, ...] = STORAGES) -> list[Cell]:
    """Cells that contain all pairs of values, chosen greedily: the same ones in each run."""
    values_of = dimensions(storages)
    chance = random.Random(1)
    missing = {
        frozenset(((a, x), (b, y)))
        for a, b in itertools.combinations(values_of, 2)
        for x in values_of[a]
        for y in values_of[b]
    }
    cells = []
    for pair in sorted(map(sorted, missing)):
        if frozenset(pair) not in missing:
            continue
        chosen = dict(pair)

        def gain(name: str, value: str) -> int:
            pairs = [frozenset(((name, value), item)) for item in chosen.items()]
            return -1 if any(each in _APART for each in pairs) else len(missing.intersection(pairs))

        for name in chance.sample(list(values_of), len(values_of)):
            if name not in chosen:
                values = chance.sample(values_of[name], len(values_of[name]))
                chosen[name] = max(values, key=lambda value: gain(name, value))
        missing -= set(map(frozenset, itertools.combinations(chosen.items(), 2)))
        cells.append(Cell(**chosen))
    return cells


def world_size(payload: str) -> int:
    return int(payload[0]) if payload.endswith("ranks") else 1


def with_faults(cells: list[Cell]) -> list[Cell]:
    """Each cell once per fault of its storage. Python needs file descriptors to run a program, and
    ranks meet in a file, to which rank 0 could not write."""

    def can_happen(cell: Cell) -> bool:
        if cell.fault == "no descriptors":
            return cell.by == "python" and OPERATIONS[cell.operation].act is not None
        return cell.fault != "no space" or world_size(cell.payload) == 1

    replaced = (
        cell._replace(fault=fault) for cell in cells for fault in FAULTS.get(cell.storage, ())
    )
    return [cell for cell in replaced if can_happen(cell)]


class Refusal(NamedTuple):
    """A row of the table in docs/matrix.md."""

    where: dict[str, tuple[str, ...]]
    errors: tuple[str, ...]
    text: str

    def concerns(self, cell: Cell) -> bool:
        return all(getattr(cell, name) in values for name, values in self.where.items())


def refusals() -> list[Refusal]:
    """What the table states: "where" consists of "name: value, value" separated by semicolons, and
    "error" of exceptions of Python or "status 2" of a program, and a part of the text."""
    lines = iter(PAGE.read_text().splitlines())
    assert "| where | error | reason |" in lines and next(lines) == "|---|---|---|"
    found = []
    for line in itertools.takewhile(lambda line: line.startswith("| "), lines):
        where, error, _ = line.strip("| ").split(" | ")
        items = (item.split(": ") for item in where.split("; "))
        errors, text = error.rstrip("`").split(": `", 1)
        conditions = {name: tuple(values.split(", ")) for name, values in items}
        found.append(Refusal(conditions, tuple(errors.split(", ")), text))
    return found
