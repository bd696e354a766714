"""The leaves of a step, as the C++ side lists them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.tree import NUMPY_ARRAY, NUMPY_SCALAR, TENSOR, VALUE
from cairn.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from cairn.reports import KeyInfo


class TensorLeaf(NamedTuple):
    """A leaf of a step that is a torch tensor, or a numpy array or scalar."""

    fqn: str
    kind: int
    """The kind of its node (cairn._base.tree)."""
    info: _cairn.TensorInfo


class ValueLeaf(NamedTuple):
    """A leaf of a step that is a plain value, or a pickle that is not loaded yet."""

    fqn: str
    stored: Any
    """The value, or a `_cairn.LongValue`."""

    @property
    def value(self) -> Any:
        """The value. A long one is read, each time."""
        return stored_values([self])[0]


Leaf = Union[TensorLeaf, ValueLeaf]


def leaf_at(contents: _cairn.Contents, index: int) -> Leaf:
    """The leaf at a position in tree order."""
    fqn, kind, content = contents.leaf(index)
    return ValueLeaf(fqn, content) if kind == VALUE else TensorLeaf(fqn, kind, content)


def plain_value(leaf: ValueLeaf, step: int, allow_pickle: bool) -> Any:
    """The value of a leaf that is not a tensor. Raises Invalid for a pickle that is not allowed."""
    return plain_values([leaf], step, allow_pickle)[0]


def plain_values(leaves: Sequence[ValueLeaf], step: int, allow_pickle: bool) -> list[Any]:
    """The values of different leaves of a step that are not tensors. Long ones are read together.
    Raises Invalid for a pickle that is not allowed, before anything is read."""
    if not allow_pickle:
        for leaf in leaves:
            check_no_pickle(leaf, step)
    return [
        _unpickled(value.data) if isinstance(value, _cairn.Pickle) else value
        for value in stored_values(leaves)
    ]


def check_no_pickle(leaf: ValueLeaf, step: int) -> None:
    """Raises Invalid for a pickle."""
    value = leaf.stored
    is_long = isinstance(value, _cairn.LongValue)
    if isinstance(value, _cairn.Pickle) or (is_long and value.type == "pickle"):
        raise Invalid(
            f"'{leaf.fqn}' in step {step} is a pickle, which can run any code when it is loaded: "
            "pass allow_pickle=True if you trust who wrote this store",
            key=leaf.fqn,
            step=step,
        )


def stored_values(leaves: Sequence[ValueLeaf]) -> list[Any]:
    """The values and Pickles of different leaves of a step. Long ones are read together. Raises
    Corrupt, and Unavailable if there is not enough memory."""
    values = [leaf.stored for leaf in leaves]
    long = [i for i, value in enumerate(values) if isinstance(value, _cairn.LongValue)]
    if not long:
        return values
    try:
        loaded = _cairn.load_values([values[i] for i in long])
    except MemoryError as error:
        raise Unavailable("there is not enough memory for the values: read fewer keys") from error
    for i, value in zip(long, loaded):
        values[i] = value
    return values


def _unpickled(data: bytes) -> Any:
    if data.startswith(_TORCH_SAVE):
        import io

        torch = dtypes.require_torch()
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    import pickle

    return pickle.loads(data)


# The first bytes of a zip archive of torch.save, which torch.distributed.checkpoint produces.
_TORCH_SAVE = b"PK\x03\x04"


_KINDS = {
    TENSOR: ("tensor", "torch.Tensor"),
    NUMPY_ARRAY: ("ndarray", "numpy.ndarray"),
    NUMPY_SCALAR: ("scalar", "numpy.generic"),
}


def key_info(leaf: Leaf) -> KeyInfo:
    """The public description of a leaf."""
    from cairn.reports import KeyInfo

    if isinstance(leaf, ValueLeaf):
        if isinstance(leaf.stored, _cairn.LongValue):
            return KeyInfo("value", leaf.stored.type, None, None, leaf.stored.nbytes, None, None)
        is_pickle = isinstance(leaf.value, _cairn.Pickle)
        type_name = "pickle" if is_pickle else type(leaf.value).__name__
        value = None if is_pickle else leaf.value
        return KeyInfo("value", type_name, None, None, 0, None, value)
    kind, type_name = _KINDS[leaf.kind]
    info = leaf.info
    dtype = dtypes.name_of(info.dtype)
    return KeyInfo(kind, type_name, dtype, info.shape, info.nbytes, info.alias_of, None)
