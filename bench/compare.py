#!/usr/bin/env python
"""Compares Cairn with other libraries and with the machine's limits in one run.

All peers save and load states (a transformer with AdamW, 20,000 small tensors, one huge embedding,
a small state) in several ways, in turns, in the same directory. Peers whose package is missing are
skipped with a message:

    .venv/bin/pip install -r bench/requirements.txt
    .venv/bin/python bench/compare.py --dir /mnt/disk/compare

Writes tables, charts and the raw results into docs/performance (or --out). The default run takes
an hour or more and 40 GiB of disk. The raw results are saved after every measurement, and --resume
continues an interrupted run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process that forks must not have threads
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

try:
    import numpy  # noqa: F401
    import torch  # noqa: F401
except ImportError as error:
    sys.exit(f"compare.py: {error}; run it with .venv/bin/python, which tools/setup.sh creates")

from compare_lib import machine, report, works  # noqa: E402
from compare_lib.peers import PEERS  # noqa: E402
from compare_lib.peers.limits import Fio  # noqa: E402
from compare_lib.results import Results  # noqa: E402
from compare_lib.runner import Progress, Runner, Turn, turns  # noqa: E402
from compare_lib.states import MAKERS, State, make_state  # noqa: E402


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers, states = [p.name for p in PEERS], list(MAKERS)
    names = [w.name for w in works.WORKS]
    parser.add_argument("--dir", type=Path, help="working directory; its new files are removed")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "performance", help="for tables and charts"
    )
    parser.add_argument("--repeat", type=int, default=5, help="runs of each measurement (5)")
    parser.add_argument("--scale", type=float, default=1, help="size of the states, 1 is full (1)")
    parser.add_argument("--block-mib", type=int, default=4, help="block size of fio (4)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per measurement (300)")
    parser.add_argument("--only-peers", type=_names(peers), default=peers, metavar="A,B")
    parser.add_argument("--only-works", type=_names(names), default=names, metavar="A,B")
    parser.add_argument("--only-states", type=_names(states), default=states, metavar="A,B")
    parser.add_argument("--resume", action="store_true", help="keep the results in raw.json")
    parser.add_argument(
        "--report-only", action="store_true", help="only generate tables and charts from raw.json"
    )
    options = parser.parse_args()
    if options.repeat < 1 or not 0 < options.scale <= 1:
        parser.error("--repeat must be at least 1, and --scale greater than 0 and at most 1")
    if not options.report_only and options.dir is None:
        parser.error("--dir is required: a directory on the disk to measure")
    return options


def _describe(options: argparse.Namespace) -> dict:
    """Returns everything in the raw results except for the runs."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": [
            "bench/compare.py",
            f"--repeat={options.repeat}",
            f"--scale={options.scale:g}",
            f"--block-mib={options.block_mib}",
        ],  # fmt: skip
        "machine": machine.machine(options.dir),
        "versions": machine.versions(),
        "peers": {
            peer.name: {
                "is_limit": peer.is_limit,
                "is_direct": peer.is_direct,
                "only_states": peer.only_states,
                "missing": peer.missing(),
                "cannot": peer.cannot,
                "cannot_partly": peer.cannot_partly,
                "remarks": peer.remarks,
            }
            for peer in PEERS
            if peer.name in options.only_peers
        },
        "works": {
            work.name: {
                "title": work.title,
                "method": work.method,
                "limits": list(work.limits),
                "other_limits": list(work.other_limits),
            }
            for work in works.WORKS
            if work.name in options.only_works
        },
        "states": {},
    }


def _describe_state(state: State, chosen: list[works.Work]) -> dict:
    return {
        "title": state.title,
        "tensors": len(state.tensors),
        "bytes": state.nbytes,
        "works": {
            work.name: {
                "bytes": work.bytes_of(state),
                "page_bytes": work.page_bytes(state),
                "impossible": work.impossible(state),
            }
            for work in chosen
            if state.name in work.states
        },
    }


def _measure(options: argparse.Namespace, results: Results, scratch: Path) -> None:
    peers = [p for p in PEERS if p.name in options.only_peers]
    for peer in peers:
        missing = results.data["peers"][peer.name]["missing"]
        if missing:
            print(f"{peer.name} is skipped: {missing}", file=sys.stderr)
    peers = [p for p in peers if not results.data["peers"][p.name]["missing"]]
    chosen = [w for w in works.WORKS if w.name in options.only_works]
    print("creating the states", file=sys.stderr)
    states = [make_state(name, options.scale) for name in MAKERS if name in options.only_states]
    plan: list[tuple[Turn, int]] = []
    for state in states:
        described = _describe_state(state, chosen)
        results.data["states"][state.name] = described
        for turn in turns(state, chosen, peers, options.repeat):
            if not results.has(turn.state, turn.work.name, turn.peer, turn.run):
                plan.append((turn, described["works"][turn.work.name]["bytes"]))
    progress = Progress(plan)
    print(f"{len(plan)} measurements, about {progress.left_s() / 60:.0f} minutes", file=sys.stderr)
    for state in states:
        runner = Runner(state, scratch, results, options.timeout)
        try:
            for turn in [turn for turn, _ in plan if turn.state == state.name]:
                begin = time.monotonic()
                records = runner.measure(turn)
                progress.done(turn, time.monotonic() - begin, records)
        finally:
            runner.remove()


def main() -> int:
    options = _parse()
    path = options.out / "raw.json"
    if options.report_only:
        report.write(Results.load(path), options.out)
        return 0
    Fio.block_bytes = options.block_mib << 20
    options.dir.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGINT, signal.SIGTERM):  # shells ignore SIGINT for background jobs
        signal.signal(number, signal.default_int_handler)
    results = Results(path)
    if options.resume and path.exists():
        results = Results.load(path)
    results.data = _describe(options) | {"runs": results.runs}
    scratch = Path(tempfile.mkdtemp(prefix="cairn-compare-", dir=options.dir))
    try:
        _measure(options, results, scratch)
    except KeyboardInterrupt:
        print(f"interrupted; {path} has the results so far, --resume continues", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report.write(results, options.out)
    failed = [run for run in results.runs if "error" in run]
    for run in failed:
        print(
            f"failed: {run['state']}, {run['work']}, {run['peer']}: {run['error']}", file=sys.stderr
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
