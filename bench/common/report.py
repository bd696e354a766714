"""Output of a program: raw results in JSON, and a page of tables in Markdown.

By default, these are in build/site/html/performance, next to the pages of the site. The pages in
docs/performance keep the tables, with date and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "site" / "html" / "performance"
MIB = 1 << 20


def options(text: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all programs have."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="working directory; its new files are removed")
    parser.add_argument("--out", type=Path, default=OUT, help=f"for the results ({OUT})")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Creates the two directories."""
    options = parser.parse_args()
    if options.dir is None:
        parser.error("--dir is required: a directory on the disk to measure")
    options.dir = options.dir.resolve()
    for folder in (options.dir, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    return options


# Machine and versions -----------------------------------------------------------------------------


def _field(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _mount_of(directory: Path) -> str:
    """Type and device of the file system that contains the directory."""
    return " on ".join(_output("df", "--output=fstype,source", str(directory)).split()[-2:])


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def describe(directory: Path, packages: Iterable[str] = ()) -> dict[str, Any]:
    """Date, machine and versions of a measurement."""
    kib = int(_field("/proc/meminfo", r"^MemTotal:\s*(\d+)"))
    versions = {
        "cairn": f"commit {_output('git', 'describe', '--always', '--dirty')}",
        "python": platform.python_version(),
    }
    packages = ("torch", "numpy", *packages)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": f"bench/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
        "machine": {
            "processor": _field("/proc/cpuinfo", r"^model name\s*:(.*)$"),
            "cores": str(len(os.sched_getaffinity(0))),
            "memory": f"{kib / MIB:.1f} GiB",
            "system": _field("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)'),
            "kernel": f"Linux {platform.release()}",
            "file system": _mount_of(directory),
        },
        "versions": versions | {package: version(package) for package in packages},
    }


# Tables and pages ---------------------------------------------------------------------------------


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def size(nbytes: float) -> str:
    if nbytes >= 1 << 30:
        return f"{nbytes / 2**30:.2f} GiB"
    return f"{nbytes / MIB:.3g} MiB" if nbytes >= MIB / 10 else f"{nbytes / 1024:.3g} KiB"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, whose first column is text."""
    head = list(head)
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def page(title: str, about: Mapping[str, Any], parts: Iterable[str]) -> str:
    """`about` is what `describe` returned."""
    lists = [", ".join(f"{k}: {v}" for k, v in about[what].items()) for what in
             ("machine", "versions")]  # fmt: skip
    heading = f"Measured on {about['date']} by `{about['command']}`."
    return "\n\n".join(
        [f"# {title}", heading, f"Machine: {lists[0]}.", f"Versions: {lists[1]}.", *parts, ""]
    )


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Replaces the file atomically, so that an interrupted program keeps its earlier results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(new, path)


def write(path: Path, title: str, result: Mapping[str, Any], parts: Iterable[str]) -> None:
    """Writes `path`.json and `path`.md, and prints the parts."""
    parts = list(parts)
    write_json(path.with_suffix(".json"), result)
    path.with_suffix(".md").write_text(page(title, result, parts))
    print(*parts, sep="\n\n")
