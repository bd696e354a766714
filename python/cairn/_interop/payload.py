"""Reads the bytes of stored tensors in pieces, row-major, in bounded memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from cairn import _cairn
from cairn._base.devices import HOST
from cairn._base.devices import load as load_requests
from cairn._base.dtypes import item_bytes
from cairn._tensors.sources import row_major

_BATCH_BYTES = 32 << 20


def blocks(
    native: _cairn.Store, contents: _cairn.Contents, tensors: list[_cairn.TensorInfo]
) -> Iterator[tuple[int, memoryview]]:
    """The bytes of all tensors in order, each with the index of its tensor; one empty block of a
    tensor without elements. A block is valid until the next one. Raises what a load raises."""
    buffer = np.empty(_BATCH_BYTES, np.uint8)
    address = buffer.__array_interface__["data"][0]
    pending: list[tuple[int, int]] = []  # index, and bytes in the buffer
    requests, used = _cairn.Requests(), 0

    def load() -> Iterator[tuple[int, memoryview]]:
        if len(requests):
            load_requests(native, contents.info, requests, contents=contents)
        begin = 0
        for index, size in pending:
            yield index, memoryview(buffer)[begin : begin + size]
            begin += size

    for index, info in enumerate(tensors):
        for offsets, sizes in _boxes(info.shape, item_bytes(info.dtype)):
            size = math.prod(sizes) * item_bytes(info.dtype)
            if used + size > _BATCH_BYTES:
                yield from load()
                requests, used = _cairn.Requests(), 0
                pending.clear()
            target = (info.dtype, row_major(sizes), address + used, HOST)
            if size:
                requests.add(info.fqn, offsets, sizes, target)
            pending.append((index, size))
            used += size
    yield from load()


def _boxes(shape: tuple[int, ...], item: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes that follow each other in row-major order, each of at most half a batch."""
    inner, dim = item, len(shape)
    while dim > 0 and inner * shape[dim - 1] <= _BATCH_BYTES // 2:
        dim -= 1
        inner *= shape[dim]
    if dim == 0 or 0 in shape:
        yield (0,) * len(shape), shape
        return
    # Everything below dimension `dim - 1`, which is divided, fits.
    rows = max(1, _BATCH_BYTES // 2 // inner)
    rest = len(shape) - dim
    for outer in itertools.product(*map(range, shape[: dim - 1])):
        for begin in range(0, shape[dim - 1], rows):
            size = min(rows, shape[dim - 1] - begin)
            yield (*outer, begin, *(0,) * rest), (*(1,) * len(outer), size, *shape[dim:])
