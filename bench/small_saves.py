#!/usr/bin/env python
"""Measures many consecutive durable saves of a small state, next to synced commits of SQLite.

    .venv/bin/python bench/small_saves.py --dir /mnt/disk/small

Each round saves the same new bytes once with every contender, in an order that rotates, so that all
of them meet the same disk. Cairn keeps every step. SQLite inserts the bytes as a blob, in one
transaction, with synchronous=FULL: with its write-ahead log, and with its rollback journal.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

import numpy  # noqa: E402

import cairn  # noqa: E402

Save = Callable[[int, numpy.ndarray], None]


def open_cairn(folder: Path) -> Save:
    store = cairn.open(folder / "cairn", mode="a")

    def save(number: int, values: numpy.ndarray) -> None:
        store.save(number, {"values": values})

    return save


def open_sqlite(folder: Path, journal: str) -> Save:
    connection = sqlite3.connect(folder / f"sqlite-{journal}.db", isolation_level=None)
    (mode,) = connection.execute(f"PRAGMA journal_mode={journal}").fetchone()
    assert mode == journal, mode
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE saves (step INTEGER PRIMARY KEY, bytes BLOB)")

    def save(number: int, values: numpy.ndarray) -> None:
        connection.execute("INSERT INTO saves VALUES (?, ?)", (number, memoryview(values)))

    return save


def measure(folder: Path, saves: int, nbytes: int) -> dict[str, list[float]]:
    """Returns the seconds of every save, by contender."""
    contenders = {
        "cairn": open_cairn(folder),
        "sqlite, WAL": open_sqlite(folder, "wal"),
        "sqlite, rollback journal": open_sqlite(folder, "delete"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    generator = numpy.random.default_rng(1)
    names = list(contenders)
    for number in range(1, saves + 1):
        values = generator.integers(0, 256, nbytes, numpy.uint8)
        for i in range(len(names)):
            name = names[(number + i) % len(names)]
            begin = time.perf_counter()
            contenders[name](number, values)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, required=True, help="working directory")
    parser.add_argument("--saves", type=int, default=1000, help="saves per contender (1000)")
    parser.add_argument("--bytes", type=int, default=1 << 20, help="size of the state (1 MiB)")
    parser.add_argument("--json", action="store_true", help="one JSON object per contender")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="small-saves-", dir=options.dir))
    try:
        seconds = measure(folder, options.saves, options.bytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, times in seconds.items():
        p50, p99, most = numpy.percentile(times, [50, 99, 100]) * 1e3
        if options.json:
            row = {"name": name, "saves": len(times), "p50_ms": p50, "p99_ms": p99, "max_ms": most}
            print(json.dumps(row))
        else:
            print(f"{name:<26} p50 {p50:7.2f} ms   p99 {p99:7.2f} ms   max {most:7.2f} ms")


if __name__ == "__main__":
    main()
