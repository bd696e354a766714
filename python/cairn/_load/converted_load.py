"""Fills memory with converted tensors: from a step, or from tensors in memory.

A piece of a step that is a box on both sides is read directly to its place, where C++ casts its
elements. All others pass through a buffer in blocks, which numpy moves to their places.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.devices import HOST
from cairn._load.contents import stored_name
from cairn._load.converted_keys import Key
from cairn._load.pieces import Piece
from cairn._tensors.sources import address_of, row_major

_BLOCK_BYTES = 8 << 20
_BUFFER_BYTES = 32 << 20
_FLOAT32 = _cairn.DTYPES["float32"][0]
# By bytes per element: the dtype as which numpy and torch move elements without changing them.
_RAW = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}


class _Part(NamedTuple):
    """A part of a piece, and memory of the dtype `dtype` that contains its place."""

    piece: Piece
    dtype: int
    memory: np.ndarray

    def blocks(self, item_bytes: int) -> Iterator[_Part]:
        """Divides it along the outermost dimensions, until the boxes are short and contain few
        other elements."""
        axes = self.piece.axes
        box_elements = math.prod(self.piece.box()[1])
        elements = math.prod(len(axis.index) for axis in axes)
        if box_elements * item_bytes <= _BLOCK_BYTES and box_elements <= 4 * elements:
            yield self
            return
        _, at = min((axis.dim, at) for at, axis in enumerate(axes) if len(axis.index) > 1)
        half = len(axes[at].index) // 2
        for kept in (slice(half), slice(half, None)):
            piece = self.piece.with_axis(at, axes[at].taken(kept))
            yield from self._replace(piece=piece).blocks(item_bytes)

    def fill(self, box: np.ndarray, dtype: int, factors: np.ndarray | None) -> None:
        """Writes the elements of its box, which have the dtype `dtype`, times `factors`."""
        piece = self.piece
        indices = {axis.dim: np.asarray(axis.index) for axis in piece.axes if axis.dim is not None}
        for dim, index in indices.items():
            if len(index) < box.shape[dim]:
                box = box.take(index - index[0], axis=dim)
        if factors is not None:
            indices |= {dim: np.array([index]) for dim, index in piece.fixed.items()}
            blocks = np.ix_(*(indices[dim] // piece.scale.block for dim in (0, 1)))
            with np.errstate(all="ignore"):
                numbers = _cast(box, dtype, _FLOAT32).view(np.float32) * factors[blocks]
            box, dtype = numbers.view(np.int32), _FLOAT32
        box = _cast(box, dtype, self.dtype)
        kept = sorted(axis.dim for axis in piece.axes if axis.dim is not None)
        box = box[tuple(slice(None) if dim in kept else 0 for dim in range(box.ndim))]
        box = box.transpose([kept.index(axis.dim) for axis in piece.axes if axis.dim is not None])
        box = box[tuple(None if axis.dim is None else slice(None) for axis in piece.axes)]
        places = [axis.at for axis in piece.axes]
        if sum(isinstance(place, np.ndarray) for place in places) > 1:
            self.memory[np.ix_(*places)] = box
        else:
            slices = (slice(at.start, at.stop) if isinstance(at, range) else at for at in places)
            self.memory[tuple(slices)] = box


def raw_array(tensor: Any) -> np.ndarray:
    """The memory of a torch tensor on the CPU as an array of other elements of the same size."""
    torch = dtypes.require_torch()
    return tensor.detach().view(getattr(torch, _RAW[tensor.element_size()])).numpy()


def _cast(box: np.ndarray, dtype: int, to: int) -> np.ndarray:
    if dtype == to:
        return box
    box = np.require(box, requirements="C")
    made = np.empty(box.shape, _RAW[dtypes.item_bytes(to)])
    _cairn.cast_elements(dtype, address_of(box), to, address_of(made), box.size)
    return made


def _memory_at(
    address: int, dtype: int, shape: Sequence[int], strides: Sequence[int]
) -> np.ndarray:
    """Memory of the caller, of at least one element."""
    item = dtypes.item_bytes(dtype)
    last = sum((size - 1) * stride for size, stride in zip(shape, strides))
    memory = (ctypes.c_uint8 * (item * (last + 1))).from_address(address)
    return np.ndarray(shape, _RAW[item], memory, 0, [item * stride for stride in strides])


class StepConversion:
    """Loads the tensors of a step as rules convert them. Memory, in addition to that of a load:
    32 MiB, and the factors of the matrices that are dequantized. Immutable."""

    def __init__(
        self, stored: _cairn.Contents, sources: Sequence[Key], keys: Mapping[str, Key]
    ) -> None:
        self._stored, self._sources, self._keys = stored, sources, keys

    def stored_name(self, fqn: str) -> str | None:
        """See `cairn._load.contents`."""
        key = self._keys[fqn]
        return stored_name(self._stored, self._sources[key.source].fqn) if key.is_whole else None

    def load(self, native: _cairn.Store, requests: _cairn.Requests) -> _cairn.ReadReport:
        """Fills the targets, which are in host memory. Raises what a load raises."""
        direct = _cairn.Requests()
        parts: list[_Part] = []
        for fqn, offsets, sizes, dtype, strides, address in requests.targets(native):
            key = self._keys.get(fqn)  # None: the hidden owner of bytes that tensors share
            if key is None or key.is_whole:
                stored = fqn if key is None else self._sources[key.source].fqn
                direct.add(stored, offsets, sizes, (dtype, strides, address, HOST))
                continue
            for complete in key.pieces:
                piece = complete.inside(offsets, sizes)
                if piece is None:
                    continue
                if piece.is_box and piece.scale is None:
                    self._add_box(direct, piece, (dtype, strides, address))
                else:
                    memory = _memory_at(address, dtype, sizes, strides)
                    parts.append(_Part(piece, dtype, memory))
        done = [self._run(native, direct)]
        scales = {part.piece.scale.source for part in parts if part.piece.scale is not None}
        factors = {source: np.empty(self._sources[source].shape, np.float32) for source in scales}
        direct = _cairn.Requests()
        for source, array in factors.items():
            self._add_box(
                direct,
                Piece.whole(source, array.shape),
                (_FLOAT32, row_major(array.shape), address_of(array)),
            )
        done.append(self._run(native, direct))
        done += self._load_parts(native, parts, factors)
        requests.check_memory()
        return _cairn.ReadReport(
            sum(each.bytes_read for each in done), sum(each.seconds for each in done)
        )

    def _run(self, native: _cairn.Store, requests: _cairn.Requests) -> _cairn.ReadReport:
        if len(requests) == 0:
            return _cairn.ReadReport(0, 0)
        return native.load(self._stored.info, requests, [], contents=self._stored)

    def _add_box(
        self, requests: _cairn.Requests, piece: Piece, target: tuple[int, tuple[int, ...], int]
    ) -> None:
        dtype, strides, address = target
        offsets, sizes = piece.box()
        stored_strides = [1] * len(sizes)
        for axis, stride in zip(piece.axes, strides):
            address += axis.at.start * stride * dtypes.item_bytes(dtype)
            if axis.dim is not None:
                stored_strides[axis.dim] = stride
        requests.add(
            self._sources[piece.source].fqn,
            offsets,
            sizes,
            (dtype, tuple(stored_strides), address, HOST),
        )

    def _load_parts(
        self, native: _cairn.Store, parts: list[_Part], factors: dict[int, np.ndarray]
    ) -> Iterator[_cairn.ReadReport]:
        """Loads blocks of the parts, as many at once as the buffer holds."""
        buffer = np.empty(_BUFFER_BYTES if parts else 0, np.uint8)
        pending: list[tuple[_Part, np.ndarray, int]] = []
        requests, used = _cairn.Requests(), 0

        def load() -> _cairn.ReadReport:
            done = self._run(native, requests)
            for block, box, dtype in pending:
                scale = block.piece.scale
                block.fill(box, dtype, None if scale is None else factors[scale.source])
            return done

        for part in parts:
            dtype = part.dtype if part.piece.scale is None else _FLOAT32
            item = dtypes.item_bytes(dtype)
            for block in part.blocks(item):
                offsets, sizes = block.piece.box()
                size = math.prod(sizes) * item
                if used + size > _BUFFER_BYTES:
                    yield load()
                    requests, used = _cairn.Requests(), 0
                    pending.clear()
                box = buffer[used : used + size].view(_RAW[item]).reshape(sizes)
                fqn = self._sources[part.piece.source].fqn
                requests.add(fqn, offsets, sizes, (dtype, row_major(sizes), address_of(box), HOST))
                pending.append((block, box, dtype))
                used += -(-size // 64) * 64
        yield load()


def fill_from_memory(
    key: Key, sources: Sequence[Key], arrays: Mapping[int, np.ndarray], memory: np.ndarray
) -> None:
    """Computes a converted tensor. `arrays` and `memory` have elements as those of `raw_array`."""
    for piece in key.pieces:
        dtype = sources[piece.source].dtype or 0
        factors = None
        if piece.scale is not None:
            factors = np.array(arrays[piece.scale.source]).view(np.float32)
        for block in _Part(piece, key.dtype or 0, memory).blocks(dtypes.item_bytes(dtype)):
            offsets, sizes = block.piece.box()
            box = tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes))
            block.fill(arrays[piece.source][box], dtype, factors)
