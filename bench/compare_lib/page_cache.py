"""Queries which bytes of files are in the page cache, and loads and evicts them."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_CACHESTAT = 451  # the same number on every architecture; Linux 6.5 and newer
_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    ]


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def resident_bytes(path: Path) -> int | None:
    """Returns the bytes of files below `path` in the page cache; None if the kernel cannot tell."""
    pages = 0
    for file in files_of(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            counts = _Counts()
            whole = _Range(0, 0)  # a length of 0 means up to the end
            if _libc.syscall(_CACHESTAT, fd, ctypes.byref(whole), ctypes.byref(counts), 0) != 0:
                return None
            pages += counts.cached
        finally:
            os.close(fd)
    return pages * os.sysconf("SC_PAGE_SIZE")


def evict(path: Path) -> int | None:
    """Evicts the files below `path` from the page cache; returns the bytes that remain there."""
    for file in files_of(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)  # dirty pages cannot be evicted
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
    return resident_bytes(path)


def warm(path: Path) -> None:
    """Reads every file below `path` once, through the page cache."""
    buffer = bytearray(8 << 20)
    for file in files_of(path):
        with open(file, "rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
