"""Measures the resources that a process uses between two points in time."""

from __future__ import annotations

import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path


def _cpu_seconds() -> float:
    """CPU time of all threads, and of child processes that have ended and were waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _numbers(path: str) -> dict[str, int]:
    """Parses the lines `name: number` of a file in /proc."""
    found = re.findall(r"^(\w+):\s*(\d+)", Path(path).read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


def _resident_bytes(field: str) -> int:
    return _numbers("/proc/self/status")[field] * 1024


@dataclass
class Spent:
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    """Highest resident memory minus the resident memory at the start."""
    read_bytes: int
    """Bytes read from storage, as counted by the kernel."""
    write_bytes: int


class Meter:
    """Starts when it is created. `peak_from` is an earlier meter whose memory is included."""

    def __init__(self, peak_from: Meter | None = None) -> None:
        if peak_from is None:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            self._start_bytes = _resident_bytes("VmRSS")
        else:
            self._start_bytes = peak_from._start_bytes
        self._io = _numbers("/proc/self/io")
        self._cpu = _cpu_seconds()
        self._begin = time.perf_counter()

    def stop(self) -> Spent:
        seconds = time.perf_counter() - self._begin
        cpu = _cpu_seconds() - self._cpu
        io = _numbers("/proc/self/io")
        return Spent(
            seconds=seconds,
            cpu_seconds=cpu,
            peak_bytes=max(0, _resident_bytes("VmHWM") - self._start_bytes),
            read_bytes=io["read_bytes"] - self._io["read_bytes"],
            write_bytes=io["write_bytes"] - self._io["write_bytes"],
        )
