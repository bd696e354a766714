"""Prepares free memory before a measurement, and checks what was loaded."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

PAGE = 4096
_libc = ctypes.CDLL(None)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


READY_SHARE = 0.7
"""Fraction of the memory that the system reports as available."""


SMALL_PAGES_BYTES = 64 << 20
"""Small objects use single pages, which the kernel manages separately from huge pages."""


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
    available = re.search(
        r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE
    )
    nbytes = min(nbytes, int(int(available.group(1)) * 1024 * READY_SHARE)) if available else nbytes
    if nbytes < PAGE:
        return
    small = _touched(min(nbytes, SMALL_PAGES_BYTES), mmap.MADV_NOHUGEPAGE)
    large = _touched(nbytes, mmap.MADV_HUGEPAGE)
    del large, small  # the kernel reuses the memory that was freed last


def _spans(values: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of the memory of each non-empty tensor, ordered by address."""
    lengths = [value.nbytes for value in values.values()]
    begins = np.fromiter((value.data_ptr() for value in values.values()), np.uint64, len(lengths))
    ends = begins + np.array(lengths, np.uint64)
    order = np.argsort(begins)
    order = order[ends[order] > begins[order]]
    return begins[order], ends[order]


def touch_pages(values: Mapping[str, Any]) -> int:
    """Reads one byte of every page of these tensors, because a lazy mapping is not a load.

    Adjacent spans without a complete page between them are processed as one; otherwise, 20,000
    tensors would measure numpy.
    """
    begins, ends = _spans(values)
    if not len(begins):
        return 0
    reach = np.maximum.accumulate(ends)
    starts = np.flatnonzero(np.append(True, begins[1:] >= reach[:-1] + np.uint64(PAGE)))
    total = 0
    for first, last in zip(starts, np.append(starts[1:], len(begins)) - 1):
        begin = int(begins[first]) // PAGE * PAGE  # in a page that contains a byte of the tensor
        length = int(reach[last]) - begin
        view = np.frombuffer((ctypes.c_ubyte * length).from_address(begin), np.uint8)
        total += int(view[::PAGE].sum(dtype=np.uint64))
    return total


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
