"""A nested state as one batch for the C++ side: the way of every save."""

from __future__ import annotations

import enum
import io
import pickle
from typing import Any

from cairn import _cairn
from cairn.errors import Invalid
from cairn.tensors import Sources, is_torch_tensor, refuse
from cairn.tree import LEAF, VALUE, Node, walk

PLAIN_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of plain values, exactly: a subclass would not come back as what it was."""


def flatten(state: Any, allow_pickle: bool) -> tuple[_cairn.Batch, list[Any]]:
    """The batch, and the objects that must stay alive while it is used. Raises Invalid."""
    nodes = walk(state)
    sources = Sources()
    tensors = []
    values = []
    owners = []
    for node in nodes:
        if node.kind != LEAF:
            continue
        if type(node.value) in PLAIN_TYPES:
            node.kind = VALUE
            values.append(node.value)
            continue
        # numpy's float64 and str_ are floats and strs by inheritance, but not of the exact type.
        source = sources.take(node.value, node.fqn)
        if source is None:
            node.kind = VALUE
            values.append(_pickled(node, allow_pickle))
            continue
        node.kind = source.kind
        tensors.append((source.dtype, source.shape, source.strides, source.address))
        owners.append(source.owner)
    batch = _cairn.Batch(
        bytes(node.kind for node in nodes),
        bytes(node.key_kind for node in nodes),
        [node.text for node in nodes],
        [node.child_count for node in nodes],
        tensors,
        values,
    )
    return batch, owners


def _pickled(node: Node, allow_pickle: bool) -> _cairn.Pickle:
    if not allow_pickle:
        name = f"{type(node.value).__module__}.{type(node.value).__qualname__}"
        raise refuse(node.fqn, f"of type {name}, which is not kept as it is", _way_out(node.value))
    buffer = io.BytesIO()
    try:
        _TensorFreePickler(buffer, node.fqn).dump(node.value)
    except Invalid:
        raise
    except Exception as error:
        way_out = f"leave it out of the state ({error})"
        raise refuse(
            node.fqn, f"a {type(node.value).__name__} that does not pickle", way_out
        ) from error
    return _cairn.Pickle(buffer.getvalue())


class _TensorFreePickler(pickle.Pickler):
    """Refuses tensors: in a pickle they would be neither chunked, shared nor loaded in part."""

    def __init__(self, file: io.BytesIO, fqn: str) -> None:
        super().__init__(file, protocol=4)
        self._fqn = fqn

    def persistent_id(self, obj: Any) -> None:
        if is_torch_tensor(obj):
            raise refuse(
                self._fqn,
                "an object with tensors inside, which is not pickled",
                "put the tensors into dicts and lists of their own",
            )


def _way_out(value: Any) -> str:
    """What to do about a leaf or container of an unsupported type."""
    otherwise = "or pass allow_pickle=True to save and load"
    if isinstance(value, enum.Enum):
        return f"save its .value, {otherwise}"
    if isinstance(value, dict):
        return f"convert it with dict(...), {otherwise}"
    if isinstance(value, tuple):
        return f"convert it with tuple(...) or ._asdict(), {otherwise}"
    if isinstance(value, (list, set, frozenset)):
        return f"convert it with list(...), {otherwise}"
    if isinstance(value, (bytearray, memoryview)):
        return f"convert it with bytes(...), {otherwise}"
    for plain in (str, int, float, complex, bytes):
        if isinstance(value, plain):
            return f"convert it with {plain.__name__}(...), {otherwise}"
    kept = "tensors, numpy arrays, None, bool, int, float, complex, str and bytes are kept"
    return f"{kept}; convert it, {otherwise}"
