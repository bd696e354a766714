"""The raw results: every run in one JSON file, which is complete at every moment."""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare_lib.child import Record

SPENT = ("seconds", "cpu_seconds", "peak_bytes", "read_bytes", "write_bytes")


@dataclass
class Figure:
    """The figures of one peer and workload over all runs."""

    median: float
    low: float
    high: float
    count: int
    cpu_seconds: float
    peak_bytes: float
    read_bytes: float
    write_bytes: float


class Results:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = {"runs": []}

    @classmethod
    def load(cls, path: Path) -> Results:
        results = cls(path)
        results.data = json.loads(path.read_text())
        return results

    @property
    def runs(self) -> list[Record]:
        return self.data["runs"]

    def add(self, records: list[Record]) -> None:
        self.runs.extend(records)
        self.write()

    def write(self) -> None:
        """Replaces the file atomically, so that an interrupted run keeps its results."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        head = {key: value for key, value in self.data.items() if key != "runs"} | {"runs": []}
        text = json.dumps(head, indent=1).removesuffix("[]\n}")
        runs = ",\n".join(json.dumps(run) for run in self.runs)  # one line per run
        new.write_text(f"{text}[\n{runs}\n]}}\n")
        os.replace(new, self.path)

    def has(self, state: str, work: str, peer: str, run: int) -> bool:
        wanted = (state, work, peer, run)
        return any((r["state"], r["work"], r["peer"], r["run"]) == wanted for r in self.runs)

    def of(self, state: str, work: str, peer: str) -> list[Record]:
        return [
            run
            for run in self.runs
            if (run["state"], run["work"], run["peer"]) == (state, work, peer)
        ]

    def figure(self, state: str, work: str, peer: str) -> Figure | None:
        """Medians over the runs that neither failed nor were the first of their process."""
        runs = [r for r in self.of(state, work, peer) if "error" not in r and not r.get("first")]
        if not runs:
            return None
        middle = {name: statistics.median(run[name] for run in runs) for name in SPENT}
        seconds = [run["seconds"] for run in runs]
        return Figure(
            median=middle.pop("seconds"),
            low=min(seconds),
            high=max(seconds),
            count=len(runs),
            **middle,
        )

    def errors(self, state: str, work: str, peer: str) -> list[str]:
        return [run["error"] for run in self.of(state, work, peer) if "error" in run]

    def limit(self, state: str, work: str) -> Figure | None:
        """Returns the fastest of the limits with which the workload is compared."""
        names = self.data["works"][work]["limits"]
        found = [self.figure(state, work, name) for name in names]
        return min((f for f in found if f is not None), key=lambda f: f.median, default=None)
