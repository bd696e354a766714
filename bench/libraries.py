#!/usr/bin/env python
"""Compares how Cairn, DCP, safetensors, TensorStore with OCDBT, and Orbax behave.

    .venv/bin/python bench/libraries.py --dir /mnt/disk/compare --out docs/performance

Each library saves a state of 24 layers with its usual calls: all of it, and with 1 % changed; and
loads all of it, one tensor, and a quarter of the rows or columns. Files are counted. Then processes
are killed during saves, and single bits of checkpoints are flipped, to see what a load finds.

With --out, comparison.md and comparison.json are written. Needs the packages of
bench/requirements.txt and python/requirements-integrations.txt; libraries that are not installed
are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

from compare_lib import machine  # noqa: E402
from libraries_lib.contenders import CONTENDERS  # noqa: E402
from libraries_lib.measure import Options, measure  # noqa: E402
from libraries_lib.report import page, tables  # noqa: E402
from libraries_lib.states import describe  # noqa: E402


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _installed(names: list[str]) -> list[str]:
    """The contenders that can be measured here; names the others."""
    found = []
    for name in names:
        missing = [one for one in CONTENDERS[name].packages if _version(one) is None]
        if missing:
            print(f"{name} is left out: {', '.join(missing)} is not installed", file=sys.stderr)
        else:
            found.append(name)
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("contenders", nargs="*", metavar="LIBRARY", help=f"by default all: {', '.join(CONTENDERS)}")
    add("--dir", type=Path, required=True, help="working directory on the disk")
    add("--out", type=Path, help="directory for comparison.md and comparison.json")
    add("--layers", type=int, default=24, help="of the state that is timed, 12 MiB each (24)")
    add("--repeat", type=int, default=5, help="timed runs of each library (5)")
    add("--kills", type=int, default=16, help="killed saves of each library and kind (16)")
    add("--flips", type=int, default=64, help="flipped bits in all bytes, and in records (64)")
    add("--note", default="", help="what the page states about the load of the machine")
    options = parser.parse_args()
    unknown = sorted(set(options.contenders) - CONTENDERS.keys())
    if unknown:
        parser.error(f"unknown libraries {unknown}; there are {list(CONTENDERS)}")
    options.contenders = options.contenders or list(CONTENDERS)
    return options


def main() -> int:
    options = _parse()
    names = _installed(options.contenders)
    options.dir.mkdir(parents=True, exist_ok=True)
    load_before = os.getloadavg()[2]
    scratch = Path(tempfile.mkdtemp(prefix="libraries-", dir=options.dir.resolve()))
    how = Options(
        scratch / "saves", scratch / "log", options.layers, options.repeat, options.kills,
        options.flips,
    )  # fmt: skip
    try:
        found = measure(how, names)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    packages = dict.fromkeys(one for name in names for one in CONTENDERS[name].packages)
    versions = {name: machine.versions()[name] for name in ("cairn", "python", "numpy")}
    result: dict[str, Any] = {
        "measured": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": "bench/" + " ".join([Path(__file__).name, *_shown(options)]),
        "machine": machine.machine(options.dir),
        "load": [load_before, os.getloadavg()[2]],
        "note": options.note and f" {options.note}",
        "versions": versions | {name: _version(name) for name in packages},
        "state": describe(how.layers),
        "options": {"repeat": how.repeat, "kills": how.kills, "flips": how.flips},
        "libraries": found,
    }
    for title, rows in tables(result).items():
        print(title, *(" | ".join(row) for row in rows), "", sep="\n")
    if options.out is not None:
        (options.out / "comparison.json").write_text(json.dumps(result, indent=1) + "\n")
        (options.out / "comparison.md").write_text(page(result))
    return 0


def _shown(options: argparse.Namespace) -> list[str]:
    """The options of the measurement, as the page shows them."""
    return [f"--{name}={getattr(options, name)}" for name in ("layers", "repeat", "kills", "flips")]


if __name__ == "__main__":
    sys.exit(main())
