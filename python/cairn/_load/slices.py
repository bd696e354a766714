"""Boxes of tensors, in the notation of the user, and reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

from cairn import _cairn
from cairn._base import devices
from cairn._base.patterns import exact_patterns
from cairn._base.tree import TENSOR
from cairn._opened.opened import Opened
from cairn._tensors.contents import ValueLeaf, leaf_at
from cairn._tensors.targets import (
    Target,
    check_same,
    mark_changed,
    new_array,
    new_tensor,
    target_of,
)
from cairn.errors import Invalid

Range = Union[tuple, slice, int]
"""One dimension: ``(begin, end)``, a slice without step, or an index, which drops the dimension."""


def read_slices(
    opened: Opened,
    boxes: Mapping[str, Sequence[Range]],
    step: int | str | None,
    out: Any = None,
) -> dict[str, Any]:
    """See `Store.read_slices`, and `Store.read_slice` for `out`."""
    native, step = opened.place_of(step)
    reader = BoxReader(native, native.contents(step, exact_patterns(boxes)))
    results = {fqn: reader.add(fqn, ranges, out) for fqn, ranges in dict(boxes).items()}
    reader.read()
    return results


class _Box(NamedTuple):
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    """The dimensions that remain, because no index drops them."""


class BoxReader:
    """Reads boxes of the tensors of a step in one batch. For a single use."""

    def __init__(self, native: _cairn.Store, contents: _cairn.Contents) -> None:
        self._native = native
        self._contents = contents
        self._places = {fqn: index for index, fqn in enumerate(contents.fqns())}
        self._requests = _cairn.Requests()
        self._targets: list[Target] = []

    def add(self, fqn: str, ranges: Sequence[Range], out: Any = None) -> Any:
        """Plans to read a box of a tensor into `out`, or into a new tensor or array, and returns
        it. Raises NotFound or Invalid."""
        step = self._contents.step
        if fqn not in self._places:
            from cairn._load.key_errors import no_such_key

            raise no_such_key(fqn, self._native.contents(step, []))
        leaf = leaf_at(self._contents, self._places[fqn])
        if isinstance(leaf, ValueLeaf):
            raise Invalid(
                f"'{fqn}' is a plain value in step {step}: use read()", key=fqn, step=step
            )
        info = leaf.info
        box = _box_of(fqn, info.shape, ranges)
        shape = tuple(box.sizes[dim] for dim in box.kept)
        if out is None:
            out = (new_tensor if leaf.kind == TENSOR else new_array)(info.dtype, shape)
        target = target_of(out, fqn)
        way_out = "give out= the dtype and shape of the step, or omit it"
        check_same(fqn, step, (info.dtype, shape), (target.dtype, target.shape), way_out)
        # A dimension of one element may have any stride.
        strides = [1] * len(box.sizes)
        for dim, stride in zip(box.kept, target.strides):
            strides[dim] = stride
        self._requests.add(
            fqn,
            box.offsets,
            box.sizes,
            (info.dtype, tuple(strides), target.address, target.device),
        )
        self._targets.append(target)
        return out

    def read(self) -> None:
        """Fills all boxes that were added. Raises Corrupt."""
        mark_changed(target.owner for target in self._targets)
        devices.load(self._native, self._contents.info, self._requests)
        for target in self._targets:
            target.complete()


def _box_of(fqn: str, shape: tuple[int, ...], ranges: Sequence[Range]) -> _Box:
    if len(ranges) > len(shape):
        raise Invalid(
            f"'{fqn}' has {len(shape)} dimensions, but {len(ranges)} ranges were given: give at "
            "most one range for each dimension",
            key=fqn,
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
        f"{given!r} is not a range of dimension {dim} of '{fqn}', which has {size} elements: give "
        "(begin, end) with 0 <= begin <= end, a slice without step, or an index",
        key=fqn,
    )
