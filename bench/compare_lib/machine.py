"""Describes the machine and the versions with which the figures were measured."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from compare_lib.peers import PEERS

ROOT = Path(__file__).resolve().parents[2]


def _field(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def _mount_of(directory: Path) -> str:
    """Type and device of the file system that contains the directory."""
    device = os.stat(directory).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        if words[2] == wanted:
            kind, source = words[words.index("-") + 1 :][:2]
            return f"{kind} on {source}"
    return "unknown"


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None


def machine(directory: Path) -> dict[str, str]:
    kib = int(_field("/proc/meminfo", r"^MemTotal:\s*(\d+)"))
    return {
        "processor": _field("/proc/cpuinfo", r"^model name\s*:(.*)$"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{kib / 2**20:.1f} GiB",
        "system": _field("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)'),
        "kernel": f"Linux {platform.release()}",
        "file system": _mount_of(directory),
        "transparent huge pages": _field(
            "/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]"
        ),
    }


def versions() -> dict[str, str]:
    found = {"cairn": f"commit {_output('git', 'describe', '--always', '--dirty') or 'unknown'}"}
    found |= {"python": platform.python_version()}
    packages = ["torch", "numpy", *(peer.package for peer in PEERS if peer.package)]
    for package in dict.fromkeys(packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    fio = _output("fio", "--version")
    return found | {"fio": fio.removeprefix("fio-") if fio else "not installed"}


def heading(result: dict[str, Any]) -> dict[str, str]:
    """What a page states about its figures: when each part was measured, and on what."""
    texts = {
        "measured": "; ".join(f"{part}: {when}" for part, when in result["measured"].items()),
        "machine": ", ".join(f"{name}: {value}" for name, value in result["machine"].items()),
    }
    return texts | {"versions": ", ".join(map(" ".join, result["versions"].items()))}
