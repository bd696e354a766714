"""Boxes as users say them, and reading one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

from cairn import _cairn
from cairn.contents import ValueLeaf, leaf_at
from cairn.errors import Invalid
from cairn.targets import check_same, new_array, new_tensor, target_of
from cairn.tree import TENSOR

Range = Union[tuple, slice, int]
"""One dimension: ``(begin, end)``, a slice without step, or an index, which drops the dimension."""


@dataclass
class _Box:
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    """The dimensions that no index dropped."""


def read_box(
    native: _cairn.Store,
    contents: _cairn.Contents,
    index: int,
    ranges: Sequence[Range],
    out: Any,
) -> Any:
    """Reads the box of the leaf at `index` into `out`, or into a new tensor or array."""
    leaf = leaf_at(contents, index)
    fqn = leaf.fqn
    if isinstance(leaf, ValueLeaf):
        raise Invalid(
            f"'{fqn}' is a plain value in step {contents.step}: use read()",
            key=fqn,
            step=contents.step,
        )
    info = leaf.info
    box = _box_of(fqn, info.shape, ranges)
    shape = tuple(box.sizes[dim] for dim in box.kept)
    if out is None:
        out = (new_tensor if leaf.kind == TENSOR else new_array)(info.dtype, shape)
    target = target_of(out, fqn)
    check_same(fqn, contents.step, (info.dtype, shape), (target.dtype, target.shape))
    # A dimension of one element may have any stride.
    strides = [1] * len(box.sizes)
    for dim, stride in zip(box.kept, target.strides):
        strides[dim] = stride
    requests = _cairn.Requests()
    requests.add(fqn, box.offsets, box.sizes, info.dtype, tuple(strides), target.address)
    native.load(contents.info, requests)
    if target.finish is not None:
        target.finish()
    return out


def _box_of(fqn: str, shape: tuple[int, ...], ranges: Sequence[Range]) -> _Box:
    if len(ranges) > len(shape):
        raise Invalid(
            f"'{fqn}' has {len(shape)} dimensions, but {len(ranges)} ranges were given", key=fqn
        )
    ranges = [*ranges, *[slice(None)] * (len(shape) - len(ranges))]
    bounds = [
        _bounds(fqn, dim, size, given) for dim, (size, given) in enumerate(zip(shape, ranges))
    ]
    return _Box(
        tuple(begin for begin, _ in bounds),
        tuple(end - begin for begin, end in bounds),
        tuple(dim for dim, given in enumerate(ranges) if not isinstance(given, int)),
    )


def _bounds(fqn: str, dim: int, size: int, given: Range) -> tuple[int, int]:
    if isinstance(given, slice):
        begin, end, step = given.indices(size)
        if step == 1:
            return begin, max(begin, end)
    elif isinstance(given, int):
        begin = given + size if given < 0 else given
        if 0 <= begin < size:
            return begin, begin + 1
    elif len(given) == 2 and 0 <= given[0] <= given[1] <= size:
        return int(given[0]), int(given[1])
    raise Invalid(
        f"{given!r} is no range of dimension {dim} of '{fqn}', which has {size} elements: give "
        "(begin, end) with 0 <= begin <= end, a slice without step, or an index",
        key=fqn,
    )
