"""The cells of the matrix: what is combined, which cells are run, and which ones are refused.

A cell is one operation on one store with one kind of payload, under further conditions. `all_pairs`
returns cells in which each value of each dimension meets each value of each other dimension;
`all_cells` returns every operation on every storage with every payload.
"""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple


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
COPYING = ("fork to another store", "push", "pull from another store", "mirror all")
WITH_PROGRAM = (
    *COPYING, "delete", "prune", "compact", "merge", "rename", "drop", "graft", "fork", "tag",
    "diff", "verify",
)  # fmt: skip
"""What a program or Python can do."""
FAULTS = {
    # The first request; the first request that changes something.
    "s3": ("busy", "denied", "lost", "write busy", "write denied", "write lost"),
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
    """Each cell once per fault of its storage. Limits of a process are not those of a program."""
    return [
        cell._replace(fault=fault, by=cell.by if cell.storage == "s3" else "python")
        for cell in cells
        for fault in FAULTS.get(cell.storage, ())
    ]


class Refusal(NamedTuple):
    """Which cells are refused, with which errors of Python or of a program, and why."""

    where: dict[str, tuple[str, ...]]
    error: str
    text: str
    reason: str

    def concerns(self, cell: Cell) -> bool:
        return all(getattr(cell, name) in values for name, values in self.where.items())

    def accepts(self, error: str, text: str) -> bool:
        return error in self.error.split("|") and self.text in text

    def row(self) -> str:
        """The row of the table in docs/matrix.md."""
        where = "; ".join(f"{name}: {', '.join(values)}" for name, values in self.where.items())
        errors = self.error.replace("ProgramError", "status 2").replace("|", ", ")
        return f"| {where} | {errors}: `{self.text}` | {self.reason} |"


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        {"storage": ("memory",), "payload": ("2 ranks", "4 ranks")},
        "NotFound",
        "other processes cannot see it; give the address of a directory or a bucket",
        "A store in memory belongs to one process.",
    ),
    Refusal(
        {"storage": ("memory",), "operation": ("repair", "report")},
        "ProgramError",
        "is a store in the memory of one process",
        "Only programs repair a store and write its report, and they do not see this memory.",
    ),
    Refusal(
        {"storage": ("memory",), "by": ("program",), "operation": WITH_PROGRAM},
        "ProgramError",
        "is a store in the memory of one process",
        "Programs do not see the memory of another process.",
    ),
    Refusal(
        {"other": ("memory",), "by": ("program",), "operation": COPYING},
        "ProgramError",
        "is a store in the memory of one process",
        "What a program copies to its own memory would be lost with it.",
    ),
    Refusal(
        {"other": ("memory",), "operation": ("repair",)},
        "ProgramError",
        "is a store in the memory of one process",
        "`kv-admin repair` does not see the memory of another process.",
    ),
    Refusal(
        {"payload": ("nothing",), "operation": ("rename", "drop", "graft")},
        "NotFound|ProgramError",
        "no key of the step matches",
        "There is no key to change.",
    ),
    Refusal(
        {
            "operation": ("merge",),
            "dtype": ("float8_e4m3fn",),
            "payload": ("host", "tiny", "64 MiB", "2 ranks", "4 ranks"),
        },
        "Invalid|ProgramError",
        "8-bit",
        "The scales of 8-bit floats are in other tensors (docs/merging.md).",
    ),
)
