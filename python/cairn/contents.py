"""What a step holds, as the C++ side lists it, leaf by leaf."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Union

from cairn import _cairn, dtypes
from cairn.errors import Invalid
from cairn.reports import KeyInfo
from cairn.tensors import row_major
from cairn.tree import NUMPY_ARRAY, NUMPY_SCALAR, TENSOR, TORCH_SIZE, VALUE, Tree


@dataclass
class TensorLeaf:
    """A leaf of a step that is a tensor: of torch, or an array or scalar of numpy."""

    __slots__ = ("fqn", "kind", "info")

    fqn: str
    kind: int
    """Of its node, see cairn.tree."""
    info: _cairn.TensorInfo


@dataclass
class ValueLeaf:
    """A leaf of a step that is a plain value; a pickle is not opened."""

    __slots__ = ("fqn", "value")

    fqn: str
    value: Any


Leaf = Union[TensorLeaf, ValueLeaf]


@dataclass
class Contents:
    """A step, or the part of it that patterns selected. Nothing of its payload has been read."""

    info: _cairn.StepInfo
    tree: Tree
    leaves: list[Leaf]
    """In tree order."""
    tensors: dict[str, _cairn.TensorInfo]
    """By FQN; owners of shared memory that are no leaves included."""

    @property
    def step(self) -> int:
        return self.info.step


def list_contents(native: _cairn.Store, step: int | None, patterns: list[str]) -> Contents:
    """Raises NotFound if there is no such step, Invalid for bad patterns."""
    info, kinds, key_kinds, keys, child_counts, fqns, slots, tensors, values = native.contents(
        step, patterns
    )
    leaf_kinds = [kind for kind in kinds if kind > TORCH_SIZE]
    leaves: list[Leaf] = [
        ValueLeaf(fqn, values[slot]) if kind == VALUE else TensorLeaf(fqn, kind, tensors[slot])
        for fqn, kind, slot in zip(fqns, leaf_kinds, slots)
    ]
    by_fqn = {tensor.fqn: tensor for tensor in tensors}
    return Contents(info, Tree(kinds, key_kinds, keys, child_counts), leaves, by_fqn)


def place_of(info: _cairn.TensorInfo) -> tuple:
    """Where a tensor's bytes lie; equal for tensors that are one and the same."""
    strides = info.alias_strides if info.alias_of is not None else row_major(info.shape)
    # The stride of a dimension of one element says nothing.
    strides = tuple(stride if size > 1 else 0 for stride, size in zip(strides, info.shape))
    owner = info.fqn if info.alias_of is None else info.alias_of
    return owner, info.alias_offset_bytes, info.dtype, info.shape, strides


def plain_value(leaf: ValueLeaf, step: int, allow_pickle: bool) -> Any:
    """The value of a leaf that is no tensor. Raises Invalid for a pickle that is not allowed."""
    if not isinstance(leaf.value, _cairn.Pickle):
        return leaf.value
    if not allow_pickle:
        raise Invalid(
            f"'{leaf.fqn}' in step {step} is a pickle, which can run any code when it is read: "
            "pass allow_pickle=True if you trust who wrote this store",
            key=leaf.fqn,
            step=step,
        )
    return pickle.loads(leaf.value.data)


_KINDS = {
    TENSOR: ("tensor", "torch.Tensor"),
    NUMPY_ARRAY: ("ndarray", "numpy.ndarray"),
    NUMPY_SCALAR: ("scalar", "numpy.generic"),
}


def key_info(leaf: Leaf) -> KeyInfo:
    """The leaf as users see it."""
    if isinstance(leaf, ValueLeaf):
        is_pickle = isinstance(leaf.value, _cairn.Pickle)
        type_name = "pickle" if is_pickle else type(leaf.value).__name__
        value = None if is_pickle else leaf.value
        return KeyInfo("value", type_name, None, None, 0, None, value)
    kind, type_name = _KINDS[leaf.kind]
    info = leaf.info
    dtype = dtypes.name_of(info.dtype)
    return KeyInfo(kind, type_name, dtype, info.shape, info.nbytes, info.alias_of, None)
