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


PAGE = Path(__file__).resolve().parents[2] / "docs" / "matrix.md"


class Cell(NamedTuple):
    operation: str
    storage: str
    payload: str
    dtype: str = "float32"
    written: str = "plain"
    """How the steps were written on which the operation works."""
    other: str = "directory"
    """The storage of the second store, of operations that have one."""
    by: str = "python"
    """Whether a program or Python performs the operation, if a program can."""
    handle: str = "writer"
    """How the store is open while the operation reads."""
    grace: str = "0"
    cache: str = "off"
    fault: str = "none"

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


STORAGES = ("directory", "memory", "s3")
PAYLOADS = ("host", "numpy", "cuda", "2 ranks", "4 ranks", "tiny", "64 MiB", "empty", "nothing")
CONDITIONS = {
    "dtype": ("float32", "bfloat16", "int64", "uint8", "complex64", "float8_e4m3fn"),
    "written": ("plain", "small chunks", "deltas", "compressed", "streamed", "compacted", "copied"),
    "other": (),
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


def world_size(payload: str) -> int:
    return int(payload[0]) if payload.endswith("ranks") else 1


_APART = (
    {("storage", "memory"), ("payload", "2 ranks")},
    {("storage", "memory"), ("payload", "4 ranks")},
    {("storage", "memory"), ("by", "program")},
    {("other", "memory"), ("by", "program")},
)
"""Pairs that are refused whatever the operation is, and would hide the other pairs of a cell."""


def all_pairs(operations: tuple[str, ...], storages: tuple[str, ...] = STORAGES) -> list[Cell]:
    """Cells that contain all pairs of values, chosen greedily: the same ones in each run."""
    dimensions = {"operation": operations, "storage": storages, "payload": PAYLOADS}
    dimensions |= _conditions(storages)
    names = list(dimensions)
    chance = random.Random(1)
    missing = {
        frozenset(((a, x), (b, y)))
        for a, b in itertools.combinations(names, 2)
        for x in dimensions[a]
        for y in dimensions[b]
    }
    cells = []
    for pair in sorted(map(sorted, missing)):
        if frozenset(pair) not in missing:
            continue
        chosen = dict(pair)
        for name in chance.sample(names, len(names)):
            if name not in chosen:
                chosen[name] = _best(name, dimensions[name], chosen, missing, chance)
        missing -= set(map(frozenset, itertools.combinations(chosen.items(), 2)))
        cells.append(Cell(**chosen))
    return cells


def _best(
    name: str, values: tuple[str, ...], chosen: dict[str, str], missing: set, chance: random.Random
) -> str:
    """The value with which the cell gets most of the missing pairs."""

    def gain(value: str) -> int:
        pairs = [frozenset(((name, value), item)) for item in chosen.items()]
        return -1 if any(pair in _APART for pair in pairs) else len(missing.intersection(pairs))

    return max(chance.sample(values, len(values)), key=gain)


def _conditions(storages: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """The second store is of the same kinds, or a directory."""
    others = storages if "directory" in storages else (*storages, "directory")
    return {**CONDITIONS, "other": others}


def all_cells(operations: tuple[str, ...], storages: tuple[str, ...] = STORAGES) -> list[Cell]:
    """Every operation on every storage with every payload, under random conditions that are
    the same in each run."""
    chance = random.Random(1)
    return [
        Cell(*key, *(chance.choice(values) for values in _conditions(storages).values()))
        for key in itertools.product(operations, storages, PAYLOADS)
    ]


def with_faults(cells: list[Cell]) -> list[Cell]:
    """Each cell once per fault of its storage. Python needs file descriptors to run a program."""
    faulty = [cell._replace(fault=f) for cell in cells for f in FAULTS.get(cell.storage, ())]
    runs_program = ("repair", "report")
    return [
        cell
        for cell in faulty
        if cell.fault != "no descriptors"
        or (cell.by == "python" and cell.operation not in runs_program)
    ]


class Refusal(NamedTuple):
    """A row of the table in docs/matrix.md."""

    where: dict[str, tuple[str, ...]]
    errors: tuple[str, ...]
    text: str

    def concerns(self, cell: Cell) -> bool:
        return all(getattr(cell, name) in values for name, values in self.where.items())

    def accepts(self, error: str, text: str) -> bool:
        return error in self.errors and self.text in text


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
