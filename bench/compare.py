#!/usr/bin/env python
"""Compares Cairn with other libraries and with the machine's limits, on a disk, in one run.

All libraries save and load states (a transformer with AdamW, 20,000 small tensors, one huge
embedding, a small state) in several ways, in turns, in the same directory. Libraries whose package
is missing are skipped with a message:

    .venv/bin/pip install -r bench/requirements.txt
    .venv/bin/python bench/compare.py --dir /mnt/disk/compare

Writes a page of tables per state, and the raw results. The default run takes an hour or more and
40 GiB of disk. The raw results are saved after every measurement, and --resume continues an
interrupted run. docs/performance/README.md describes how it measures.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process that forks must not have threads
try:
    import numpy  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    sys.exit(f"compare.py: {error}; run it with .venv/bin/python, which tools/setup.sh creates")

from common import report
from common.limits import Fio
from common.states import MAKERS, make_state
from common.works import PEERS, WORKS, Runner, Work, turns

SPENT = ("seconds", "cpu_seconds", "peak_bytes", "read_bytes", "write_bytes")
COLUMNS = (
    "", "median", "min–max", "of the limit", "time, Cairn = 1", "CPU s", "CPU s/GB",
    "peak MiB", "read MiB", "written MiB",
)  # fmt: skip
MIB = 1 << 20
Run = dict[str, Any]


# Results ------------------------------------------------------------------------------------------


class Results:
    """The runs of all measurements, and what is known of libraries, workloads and states."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path, self.data = path, data

    @property
    def runs(self) -> list[Run]:
        return self.data["runs"]

    def add(self, records: list[Run]) -> None:
        self.runs.extend(records)
        report.write_json(self.path, self.data)

    def of(self, state: str, work: str, peer: str) -> list[Run]:
        wanted = (state, work, peer)
        return [run for run in self.runs if (run["state"], run["work"], run["peer"]) == wanted]

    def figure(self, state: str, work: str, peer: str) -> dict[str, float] | None:
        """Medians of the runs that neither failed nor were the first of their process."""
        runs = [r for r in self.of(state, work, peer) if "error" not in r and not r.get("first")]
        if not runs:
            return None
        found = {name: statistics.median(run[name] for run in runs) for name in SPENT}
        seconds = [run["seconds"] for run in runs]
        return found | {"low": min(seconds), "high": max(seconds)}

    def limit(self, state: str, work: Work) -> dict[str, float] | None:
        """The fastest of the limits with which the workload is compared."""
        found = [f for name in work.limits if (f := self.figure(state, work.name, name))]
        return min(found, key=lambda figure: figure["seconds"], default=None)


# Pages --------------------------------------------------------------------------------------------


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _cells(figure: Run, limit: Run | None, cairn: Run | None, nbytes: int) -> list[str]:
    return [
        report.seconds(figure["seconds"]),
        f"{report.seconds(figure['low'])} – {report.seconds(figure['high'])}",
        _ratio(limit["seconds"] / figure["seconds"]) if limit else "",
        _ratio(figure["seconds"] / cairn["seconds"]) if cairn else "",
        f"{figure['cpu_seconds']:.3f}",
        f"{figure['cpu_seconds'] / nbytes * 1e9:.2f}" if nbytes else "–",
        f"{figure['peak_bytes'] / MIB:.0f}",
        f"{figure['read_bytes'] / MIB:.1f}",
        f"{figure['write_bytes'] / MIB:.1f}",
    ]


def _work_parts(results: Results, state: str, work: Work, nbytes: int) -> Iterator[str]:
    """The table of a workload, and what the table does not contain."""
    limit, cairn = results.limit(state, work), results.figure(state, work.name, "cairn")
    rows, notes = [], []
    for kind in PEERS:
        runs = results.of(state, work.name, kind.name)
        notes += {f"- {kind.name}: failed: {run['error']}" for run in runs if "error" in run}
        figure = results.figure(state, work.name, kind.name)
        if figure is not None:
            name = f"*{kind.name}*" if kind.is_limit else kind.name
            rows.append([name, *_cells(figure, limit, cairn, nbytes)])
        elif not (kind.is_limit or runs) and state in (kind.states or (state,)):
            missing = results.data["missing"].get(kind.name)
            reason = missing or work.why_not(kind) or "was not measured in this run"
            notes.append(f"- {kind.name}: {reason}")
    yield report.table(COLUMNS, rows)
    yield "\n".join(notes)


def write_pages(results: Results, out: Path) -> None:
    """Writes NAME.md for each state."""
    settings = [f"- {kind.name}: {kind.remark}" for kind in PEERS if kind.remark]
    for state, described in results.data["states"].items():
        parts = []
        for work in (work for work in WORKS if work.name in described["works"]):
            nbytes = described["works"][work.name]
            parts.append(f"## {work.title[0].upper()}{work.title[1:]}")
            parts += [f"{report.size(nbytes)}."] if nbytes else []
            parts += _work_parts(results, state, work, nbytes)
        parts += ["## Settings", "\n".join(settings)]
        (out / f"{state}.md").write_text(report.page(described["title"], results.data, parts))


# The program --------------------------------------------------------------------------------------


def _names(known: list[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        unknown = [name for name in names if name not in known]
        if unknown:
            valid = ", ".join(known)
            raise argparse.ArgumentTypeError(f"unknown name {unknown[0]!r}; valid names: {valid}")
        return names

    return parse


def _parse() -> argparse.Namespace:
    parser = report.options(__doc__)
    peers, states, names = [p.name for p in PEERS], list(MAKERS), [w.name for w in WORKS]
    parser.add_argument("--repeat", type=int, default=5, help="runs of each measurement (5)")
    parser.add_argument("--scale", type=float, default=1, help="size of the states, 1 is full (1)")
    parser.add_argument("--block-mib", type=int, default=4, help="block size of fio (4)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per measurement (300)")
    parser.add_argument("--only-peers", type=_names(peers), default=peers, metavar="A,B")
    parser.add_argument("--only-works", type=_names(names), default=names, metavar="A,B")
    parser.add_argument("--only-states", type=_names(states), default=states, metavar="A,B")
    parser.add_argument("--resume", action="store_true", help="keep the results in raw.json")
    options = report.parse(parser)
    if options.repeat < 1 or not 0 < options.scale <= 1:
        parser.error("--repeat must be at least 1, and --scale greater than 0 and at most 1")
    return options


def _measure(
    options: argparse.Namespace, results: Results, chosen: list[Work], scratch: Path
) -> None:
    peers = [peer for peer in PEERS if peer.name in options.only_peers]
    missing = {peer.name: why for peer in peers if (why := peer.missing())}
    for name, why in missing.items():
        print(f"{name} is skipped: {why}", file=sys.stderr)
    peers = [peer for peer in peers if peer.name not in missing]
    results.data["missing"] = missing
    for name in options.only_states:
        state = make_state(name, options.scale)
        tensors = f": {report.size(state.nbytes)} in {len(state.tensors):,} tensors"
        results.data["states"][name] = {
            "title": state.title + (tensors if state.tensors else ""),
            "works": {w.name: w.bytes_of(state) for w in chosen if name in w.states},
        }
        done = {(r["work"], r["peer"], r["run"]) for r in results.runs if r["state"] == name}
        wanted = turns(state, chosen, peers, options.repeat)
        plan = [t for t in wanted if (t.work.name, t.kind.name, t.run) not in done]
        print(f"{name}: {len(plan)} measurements", file=sys.stderr)
        runner = Runner(state, scratch, options.timeout)
        try:
            for number, turn in enumerate(plan, 1):
                records = runner.measure(turn)
                results.add(records)
                what = records[-1].get("error") or report.seconds(records[-1]["seconds"])
                place = f"[{number}/{len(plan)}] {name}, {turn.work.title}, {turn.kind.name}"
                print(f"{place}, run {turn.run}: {what}", file=sys.stderr, flush=True)
        finally:
            runner.remove()


def main() -> int:
    options = _parse()
    path = options.out / "raw.json"
    Fio.block_bytes = options.block_mib << 20
    for number in (signal.SIGINT, signal.SIGTERM):  # shells ignore SIGINT for background jobs
        signal.signal(number, signal.default_int_handler)
    chosen = [work for work in WORKS if work.name in options.only_works]
    kept = json.loads(path.read_text())["runs"] if options.resume and path.exists() else []
    packages = [package for peer in PEERS for package in peer.packages]
    about = report.describe(options.dir, packages)
    results = Results(path, about | {"states": {}, "runs": kept})
    scratch = Path(tempfile.mkdtemp(prefix="cairn-compare-", dir=options.dir))
    try:
        _measure(options, results, chosen, scratch)
    except KeyboardInterrupt:
        print(f"interrupted; {path} has the results so far, --resume continues", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write_pages(results, options.out)
    failed = [run for run in results.runs if "error" in run]
    for run in failed:
        where = f"{run['state']}, {run['work']}, {run['peer']}"
        print(f"failed: {where}: {run['error']}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
