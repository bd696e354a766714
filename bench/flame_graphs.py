#!/usr/bin/env python
"""Draws flame graphs: in which functions Cairn's main operations use the processor.

    apt-get install linux-perf
    .venv/bin/pip install -r bench/requirements.txt
    .venv/bin/python bench/flame_graphs.py --dir /mnt/disk/flames --out flames

Each graph is a run of kv-bench under `perf record`, with all of its threads, and includes what the
benchmark does before and after the operation. Open the SVG in a browser: a click enlarges a
function, Ctrl-F searches.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FREQUENCY_HZ = 297  # of samples; not in step with timers
# What is narrower than this is not drawn: with it, a graph would be several MB long.
LEAST_PIXELS = 1
OPERATIONS = {
    "save": ["save", "--bytes", "2GiB", "--repeat", "3"],
    "save-unchanged": ["incremental", "--bytes", "2GiB", "--changed", "0", "--repeat", "3"],
    "save-small-tensors": [
        *("incremental", "--bytes", "700MiB"),
        *("--tensors", "20000", "--repeat", "5"),
    ],
    "load-cold": ["load", "--bytes", "2GiB", "--repeat", "3"],
    "load-warm": ["load", "--bytes", "2GiB", "--repeat", "3", "--warm"],
    "commit-of-many-ranks": ["commit", "--ranks", "16384", "--chunks", "2097152"],
    "commit-among-many-steps": ["steps", "--steps", "10000", "--repeat", "200"],
}


def draw(name: str, arguments: list[str], scratch: Path, out: Path, flamegraph: str) -> None:
    """Writes `name`.svg into `out`."""
    verb, *options = arguments
    samples, work = scratch / "perf.data", scratch / "work"
    work.mkdir()
    command = [str(ROOT / "build/bin/kv-bench"), verb, "--dir", str(work), *options]
    record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(FREQUENCY_HZ)]
    subprocess.run(
        [*record, "--call-graph", "dwarf,8192", "-o", str(samples), "--", *command],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    title = f"kv-bench {' '.join(arguments)}"
    subprocess.run(
        [flamegraph, "--perfdata", str(samples), "--deterministic", "--title", title,
         "--min-width", str(LEAST_PIXELS), "-o", str(out / f"{name}.svg")],
        check=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, required=True, help="working directory on the disk")
    parser.add_argument("--out", type=Path, required=True, help="directory for the SVG files")
    parser.add_argument("--only", nargs="+", choices=list(OPERATIONS), default=list(OPERATIONS))
    options = parser.parse_args()
    flamegraph = ROOT / ".venv/bin/flamegraph"
    if not flamegraph.exists() or shutil.which("perf") is None:
        sys.exit(
            "flame_graphs.py: needs perf (Debian's linux-perf) and "
            "`.venv/bin/pip install -r bench/requirements.txt`"
        )
    options.dir.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        print(f"{name}", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="flames-", dir=options.dir) as scratch:
            draw(name, OPERATIONS[name], Path(scratch), options.out, str(flamegraph))


if __name__ == "__main__":
    main()
