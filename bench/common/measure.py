"""Measures what a process uses, and prepares page cache and memory before it does."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import resource
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

PAGE = 4096
READY_SHARE = 0.7
"""Fraction of the available memory that make_ready may touch."""
SMALL_PAGES_BYTES = 64 << 20
"""Small objects use single pages, which the kernel manages separately from huge pages."""
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def _numbers(path: str) -> dict[str, int]:
    """Parses the lines `name: number` of a file in /proc."""
    found = re.findall(r"^(\w+):\s*(\d+)", Path(path).read_text(), re.MULTILINE)
    return {name: int(number) for name, number in found}


def cpu_seconds() -> float:
    """CPU time of all threads, and of child processes that have ended and were waited for."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Meter:
    """Starts when it is created. `peak_from` is an earlier meter whose memory is included."""

    def __init__(self, peak_from: Meter | None = None) -> None:
        if peak_from is None:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak
            self._start_bytes = _numbers("/proc/self/status")["VmRSS"] * 1024
        else:
            self._start_bytes = peak_from._start_bytes
        self._io = _numbers("/proc/self/io")
        self._cpu = cpu_seconds()
        self._begin = time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Returns what was used: `peak_bytes` is the highest resident memory beyond that at the
        start; `read_bytes` and `write_bytes` are of the storage, as counted by the kernel."""
        seconds = time.perf_counter() - self._begin
        cpu = cpu_seconds() - self._cpu
        io = _numbers("/proc/self/io")
        peak = _numbers("/proc/self/status")["VmHWM"] * 1024
        return {
            "seconds": seconds,
            "cpu_seconds": cpu,
            "peak_bytes": max(0, peak - self._start_bytes),
            "read_bytes": io["read_bytes"] - self._io["read_bytes"],
            "write_bytes": io["write_bytes"] - self._io["write_bytes"],
        }


# Files and the page cache -------------------------------------------------------------------------


def sync_tree(path: Path) -> None:
    """Makes a new file or directory, all below it, and its name durable."""
    for each in (*path.rglob("*"), path, path.parent):
        fd = os.open(each, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def bytes_in(store: Path, folders: Iterable[str]) -> int:
    """The length of all objects in these folders of a store."""
    return sum(file.stat().st_size for name in folders for file in (store / name).glob("*"))


def evict(path: Path) -> None:
    """Evicts the files below `path` from the page cache. The bytes that are read from the storage
    afterwards show whether it did."""
    for file in files_of(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)  # dirty pages cannot be evicted
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def warm(path: Path) -> None:
    """Reads every file below `path` once, through the page cache."""
    buffer = bytearray(8 << 20)
    for file in files_of(path):
        with open(file, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


# Memory -------------------------------------------------------------------------------------------


def _touched(nbytes: int, advice: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    np.frombuffer(memory, np.uint8)[::PAGE] = 1
    return memory


def make_ready(nbytes: int) -> None:
    """Touches this amount of memory and frees it again.

    A virtual machine may have to request memory that was not used recently from its host, at a
    rate that does not depend on the measured program. After this call, the memory is available.
    """
    nbytes = min(nbytes, int(_numbers("/proc/meminfo")["MemAvailable"] * 1024 * READY_SHARE))
    if nbytes < PAGE:
        return
    small = _touched(min(nbytes, SMALL_PAGES_BYTES), mmap.MADV_NOHUGEPAGE)
    large = _touched(nbytes, mmap.MADV_HUGEPAGE)
    del large, small  # the kernel reuses the memory that was freed last


def _spans(values: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of the memory of each non-empty tensor, ordered by address.

    AssertionError: a tensor is not contiguous.
    """
    strided = [key for key, value in values.items() if not value.is_contiguous()]
    assert not strided, f"{strided[0]} is not contiguous: what a library returns must be in memory"
    lengths = [value.nbytes for value in values.values()]
    begins = np.fromiter((value.data_ptr() for value in values.values()), np.uint64, len(lengths))
    ends = begins + np.array(lengths, np.uint64)
    order = np.argsort(begins)
    order = order[ends[order] > begins[order]]
    return begins[order], ends[order]


def touch_pages(values: Mapping[str, Any]) -> None:
    """Reads one byte of every page of these tensors, because a lazy mapping is not a load.

    Adjacent spans without a complete page between them are processed as one; otherwise, 20,000
    tensors would measure numpy.
    """
    begins, ends = _spans(values)
    if not len(begins):
        return
    reach = np.maximum.accumulate(ends)
    starts = np.flatnonzero(np.append(True, begins[1:] >= reach[:-1] + np.uint64(PAGE)))
    for first, last in zip(starts, np.append(starts[1:], len(begins)) - 1):
        begin = int(begins[first]) // PAGE * PAGE  # in a page that contains a byte of the tensor
        length = int(reach[last]) - begin
        view = np.frombuffer((ctypes.c_ubyte * length).from_address(begin), np.uint8)
        view[::PAGE].sum(dtype=np.uint64)


def take_over(values: Mapping[str, torch.Tensor]) -> None:
    """Accesses the parent's tensors after a fork, so that the measurement does not pay for it.

    The kernel marks the child's copy of every page table entry as unused, and the processor takes
    a third of a microsecond to mark a page as used. Names and tensor objects are copied, because
    their reference counts are written.
    """
    touch_pages(values)
    for _, value in values.items():
        value.detach()


def first_difference(loaded: Mapping[str, Any], expected: Mapping[str, torch.Tensor]) -> str | None:
    """Describes the first difference of the loaded tensors; None if every bit is as expected."""
    if loaded.keys() != expected.keys():
        odd = sorted(loaded.keys() ^ expected.keys())
        return f"{len(odd)} keys on one side only, {odd[0]!r} the first"
    for key, right in expected.items():
        left = loaded[key]
        if left.dtype != right.dtype or tuple(left.shape) != tuple(right.shape):
            return f"{key!r} is {left.dtype} {tuple(left.shape)}"
        left, right = left.contiguous(), right.contiguous()
        if right.nbytes and _libc.memcmp(left.data_ptr(), right.data_ptr(), right.nbytes) != 0:
            return f"{key!r} has other bytes than were saved"
    return None
