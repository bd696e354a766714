"""Pickles of a step as torch.save writes them, restricted to what
``torch.load(weights_only=True)`` accepts. The storages of the tensors are written separately."""

from __future__ import annotations

import io

import pickle
from _codecs import encode as _encode
from collections import OrderedDict
from typing import Any, NamedTuple

import torch

from cairn import _cairn
from cairn._base.dtypes import item_bytes, torch_dtype
from cairn._base.tree import TENSOR
from cairn._interop.pickles import STORAGE_NAMES
from cairn._tensors.contents import ValueLeaf, leaf_at
from cairn._tensors.sources import row_major
from cairn.errors import Corrupt, Invalid

_MAX_INT_BYTES = 255
_REMEDY = "leave the key out with a pattern"


class Storage:
    """Bytes of the tensor `owner` that tensors share."""

    def __init__(self, owner: _cairn.TensorInfo, dtype: torch.dtype | None) -> None:
        self.owner, self.dtype = owner, dtype


class Tensor(NamedTuple):
    """A tensor of a step."""

    info: _cairn.TensorInfo
    storage: Storage
    offset: int
    strides: tuple[int, ...]


class _NoBytes:
    """An empty bytes object, which protocol 2 writes as a call that weights_only refuses."""


class Leaves:
    """The leaves of a step, in the order of its tree, in the form that `dump` writes. Raises
    Invalid for a leaf that weights_only does not accept; the error names its key."""

    def __init__(self, contents: _cairn.Contents) -> None:
        self._contents = contents
        self._storages: dict[str, Storage] = {}
        self.values = self.arrays = 0
        self.leaves: list[Any] = []
        leaves = [leaf_at(contents, i) for i in range(len(contents))]
        # All views of a storage must have its dtype. If theirs differ, it has none.
        views: dict[str, set[int]] = {}
        for leaf in leaves:
            if not isinstance(leaf, ValueLeaf):
                views.setdefault(leaf.info.alias_of or leaf.fqn, set()).add(leaf.info.dtype)
        for leaf in leaves:
            if isinstance(leaf, ValueLeaf):
                self.values += 1
                self.leaves.append(_checked(leaf))
            else:
                self.arrays += leaf.kind != TENSOR
                self.leaves.append(self._tensor(leaf.info, views))

    def build(self) -> Any:
        """The nested state."""
        # Tensor subclasses are their inner tensors and a value that describes them.
        return self._contents.build(self.leaves, lambda parts, fqn: parts)

    def _tensor(self, info: _cairn.TensorInfo, views: dict[str, set[int]]) -> Tensor:
        owner, item = info, item_bytes(info.dtype)
        # torch counts the offset of a view in its elements. Other views get their own storage.
        if info.alias_of is not None and info.alias_offset_bytes % item == 0:
            owner = self._contents.find_tensor(info.alias_of)
            if owner is None:
                raise Corrupt(f"the tensor that holds its bytes is missing (key {info.fqn})")
        if owner is info:
            dtypes = {info.dtype} if info.alias_of else views[info.fqn]
            storage = self._storage(info, dtypes, item)
            return Tensor(info, storage, 0, row_major(info.shape))
        last = info.alias_offset_bytes + span(info)
        if info.nbytes and last > owner.nbytes:
            raise Corrupt(f"it extends beyond the tensor that holds its bytes (key {info.fqn})")
        storage = self._storage(owner, views[owner.fqn], item)
        return Tensor(info, storage, info.alias_offset_bytes // item, info.alias_strides)

    def _storage(self, owner: _cairn.TensorInfo, dtypes: set[int], item: int) -> Storage:
        if owner.fqn not in self._storages:
            dtype = torch_dtype(next(iter(dtypes))) if len(dtypes) == 1 else None
            is_typed = dtype in STORAGE_NAMES and owner.nbytes % item == 0
            self._storages[owner.fqn] = Storage(owner, dtype if is_typed else None)
        return self._storages[owner.fqn]


def alone(tensor: Tensor) -> Tensor:
    """The tensor with a storage that has only its own elements."""
    dtype = torch_dtype(tensor.info.dtype)
    storage = Storage(tensor.info, dtype if dtype in STORAGE_NAMES else None)
    return Tensor(tensor.info, storage, 0, row_major(tensor.info.shape))


def span(info: _cairn.TensorInfo) -> int:
    """The bytes from the first to the last element of a tensor that shares the bytes of another."""
    item = item_bytes(info.dtype)
    steps = zip(info.shape, info.alias_strides, strict=True)
    return item * (1 + sum((size - 1) * stride for size, stride in steps))


def dump(state: Any) -> tuple[bytes, list[_cairn.TensorInfo]]:
    """The pickle, and the tensors whose row-major bytes are its storages 0, 1, ..."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(state)
    return file.getvalue(), [storage.owner for storage in pickler.numbers]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.numbers: dict[Storage, int] = {}

    def persistent_id(self, value: Any) -> Any:
        if type(value) is not Storage:
            return None
        number = self.numbers.setdefault(value, len(self.numbers))
        kind, item = torch.UntypedStorage, 1
        if value.dtype is not None:
            kind, item = getattr(torch, STORAGE_NAMES[value.dtype]), value.dtype.itemsize
        return "storage", kind, str(number), "cpu", value.owner.nbytes // item

    def reducer_override(self, value: Any) -> Any:
        if type(value) is _NoBytes:
            return _encode, ("", "latin1")
        if type(value) is not Tensor:
            return NotImplemented
        arguments = (
            value.storage, value.offset, tuple(value.info.shape), tuple(value.strides), False,
            OrderedDict(),
        )  # fmt: skip
        if value.storage.dtype is not None:
            return torch._utils._rebuild_tensor_v2, arguments
        return torch._utils._rebuild_tensor_v3, (*arguments, torch_dtype(value.info.dtype))


def _checked(leaf: ValueLeaf) -> Any:
    value = leaf.value
    if isinstance(value, _cairn.Pickle):
        raise Invalid(
            "a pickled object, which torch.load(weights_only=True) does not accept; "
            f"{_REMEDY} (key {leaf.fqn})"
        )
    if type(value) is int and (value.bit_length() + 8) // 8 > _MAX_INT_BYTES:
        raise Invalid(
            f"torch.load(weights_only=True) accepts ints of up to {_MAX_INT_BYTES} bytes, and this "
            f"one is longer; {_REMEDY} (key {leaf.fqn})"
        )
    return _NoBytes() if value == b"" and type(value) is bytes else value
