"""Which elements of which stored tensors a converted tensor consists of.

No rule mixes dimensions, so each dimension of a piece is described by itself, as a list of indices
in the converted tensor and one in the stored tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Union

import numpy as np

Indices = Union[range, np.ndarray]


class Axis(NamedTuple):
    """One dimension of a piece: the indices `at` of the converted tensor have the elements `index`
    of the dimension `dim` of the stored one. Both are ranges with step 1, or both are arrays. If
    `dim` is None, the stored tensor does not have the dimension, and there is one index."""

    dim: int | None
    at: Indices
    index: Indices

    def taken(self, kept: slice | np.ndarray) -> Axis:
        """Some of the indices, by their positions."""
        return Axis(self.dim, self.at[kept], self.index[kept])

    def clipped(self, begin: int, size: int) -> Axis | None:
        """The indices in [begin, begin + size), counted from there; None if there are none."""
        if isinstance(self.at, range):
            low = max(begin - self.at.start, 0)
            part = self.taken(slice(low, max(low, begin + size - self.at.start)))
        else:
            part = self.taken(np.flatnonzero((self.at >= begin) & (self.at < begin + size)))
        return part.shifted(-begin) if len(part.at) else None

    def shifted(self, distance: int) -> Axis:
        if isinstance(self.at, range):
            moved = range(self.at.start + distance, self.at.stop + distance)
            return self._replace(at=moved)
        return self._replace(at=self.at + distance)

    def rearranged(self, factors: Sequence[int], order: Sequence[int]) -> Axis:
        """Views the dimension as `factors`, and permutes these."""
        digits = np.unravel_index(np.asarray(self.at), factors)
        permuted = [digits[factor] for factor in order]
        at = np.ravel_multi_index(permuted, [factors[factor] for factor in order])
        index = np.asarray(self.index)
        if (np.diff(at) == 1).all() and (np.diff(index) == 1).all():
            return Axis(self.dim, *(range(int(each[0]), int(each[-1]) + 1) for each in (at, index)))
        return Axis(self.dim, at, index)


class Scale(NamedTuple):
    """Factors of blocks of the stored matrix: the tensor `source` has one float32 element per block
    of `block` x `block` elements."""

    source: int
    block: int


class Piece(NamedTuple):
    """A part of one stored tensor."""

    source: int
    """Its position in the list of stored tensors."""
    axes: tuple[Axis, ...]
    """By dimension of the converted tensor."""
    fixed: dict[int, int]
    """The index in each dimension of the stored tensor that has no axis."""
    scale: Scale | None = None

    @staticmethod
    def whole(source: int, shape: Iterable[int]) -> Piece:
        axes = (Axis(dim, range(size), range(size)) for dim, size in enumerate(shape))
        return Piece(source, tuple(axes), {})

    def with_axis(self, dim: int, axis: Axis) -> Piece:
        """With another axis in place of one."""
        return self._replace(axes=(*self.axes[:dim], axis, *self.axes[dim + 1 :]))

    def clipped(self, dim: int, begin: int, size: int) -> Piece | None:
        """The part in a range of one dimension, counted from there."""
        axis = self.axes[dim].clipped(begin, size)
        return None if axis is None else self.with_axis(dim, axis)

    def inside(self, offsets: Sequence[int], sizes: Sequence[int]) -> Piece | None:
        """The part in a box of the converted tensor, counted from there."""
        piece: Piece | None = self
        for dim, (begin, size) in enumerate(zip(offsets, sizes)):
            piece = piece and piece.clipped(dim, begin, size)
        return piece

    def without(self, dim: int) -> Piece:
        """Without a dimension, of which there is one index."""
        axis = self.axes[dim]
        fixed = self.fixed if axis.dim is None else {**self.fixed, axis.dim: int(axis.index[0])}
        return self._replace(axes=(*self.axes[:dim], *self.axes[dim + 1 :]), fixed=fixed)

    def box(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Offsets and sizes of the box in the stored tensor that contains it."""
        bounds = {dim: (index, 1) for dim, index in self.fixed.items()}
        for axis in self.axes:
            if axis.dim is not None:
                first = int(axis.index[0])
                bounds[axis.dim] = (first, int(axis.index[-1]) + 1 - first)
        ordered = [bounds[dim] for dim in sorted(bounds)]
        return tuple(begin for begin, _ in ordered), tuple(size for _, size in ordered)

    @property
    def is_box(self) -> bool:
        """Whether it is a box on both sides, with the same order inside each dimension."""
        return all(isinstance(axis.at, range) for axis in self.axes)
