"""The leaves of pytrees: their names, and the nested state with these names; the dtypes of arrays,
and their boxes in host memory."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from cairn._base import dtypes
from cairn._tensors.sources import Box, BoxedTensor, address_of
from cairn.errors import Invalid, refuse

# A buffer that is aligned to this many bytes becomes a CPU array without a copy.
_ALIGNMENT_BYTES = 64

KEY_DATA, KEY_IMPL = "key_data", "impl"
"""The names below the name of a PRNG key array."""


def is_key(dtype: Any) -> bool:
    """True for the dtype of ``jax.random.key``."""
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def code_of(dtype: Any, fqn: str) -> int:
    """The code of a dtype of JAX or numpy. Raises Invalid."""
    dtype = np.dtype(dtype)
    code, item_bytes = dtypes.DTYPES.get(dtype.name, (0, 0))
    if code == 0 or item_bytes != dtype.itemsize:
        way_out = "convert it, or view it as integers, first"
        raise refuse(fqn, f"an array of {dtype.name}, which Cairn does not support", way_out)
    return code


def dtype_of(code: int) -> np.dtype | None:
    """The dtype of JAX, or None if it has none."""
    try:
        return jax.numpy.dtype(dtypes.name_of(code))
    except TypeError:
        return None


def is_kept(dtype: np.dtype) -> bool:
    """False for 64-bit dtypes that JAX converts to 32 bits."""
    return jax.dtypes.canonicalize_dtype(dtype) == dtype


def leaf_to_save(value: Any, fqn: str) -> Any:
    """The value that `Store.save` saves in place of a leaf of a pytree. Raises Invalid."""
    if isinstance(value, jax.core.Tracer):
        raise refuse(fqn, "a tracer, which has no values", "save outside of jit")
    if isinstance(value, jax.Array):
        if value.is_deleted():
            raise refuse(fqn, "an array that was deleted or donated", "save before the donation")
        if is_key(value.dtype):
            return _key_to_save(value, fqn)
        code = code_of(value.dtype, fqn)
        if jax.process_count() > 1 and value.is_fully_addressable:
            # Each process has such an array, as it has a numpy array.
            whole = Box((0,) * value.ndim, np.asarray(value))
            return BoxedTensor(code, value.shape, [whole], is_replicated=True)
        return BoxedTensor(code, value.shape, _own_boxes(value))
    if isinstance(value, (np.ndarray, np.generic)) and _is_foreign(value.dtype):
        array = np.asarray(value)
        box = Box((0,) * array.ndim, array)
        return BoxedTensor(code_of(array.dtype, fqn), array.shape, [box], is_replicated=True)
    return value


def _is_foreign(dtype: np.dtype) -> bool:
    """True for a dtype that Cairn supports and numpy itself lacks, such as bfloat16."""
    return dtype.name in dtypes.DTYPES and dtypes.code_of_numpy(dtype.newbyteorder("=")) is None


def _key_to_save(key: jax.Array, fqn: str) -> dict[str, Any]:
    implementation = jax.random.key_impl(key)
    if not isinstance(implementation, str):
        way_out = "save jax.random.key_data(key) instead"
        raise refuse(fqn, "a PRNG key of an implementation without a registered name", way_out)
    return {
        KEY_DATA: leaf_to_save(jax.random.key_data(key), f"{fqn}.{KEY_DATA}"),
        KEY_IMPL: implementation,
    }


def _own_boxes(array: jax.Array) -> list[Box]:
    """The boxes that this process writes: of each set of equal shards the first. CPU buffers are
    not copied."""
    return [
        Box(box_of(shard.index, array.shape)[0], np.asarray(shard.data))
        for shard in array.addressable_shards
        if shard.replica_id == 0
    ]


def box_of(
    index: tuple[slice, ...], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes of the part of an array that ``index`` selects."""
    ranges = [part.indices(size)[:2] for part, size in zip(index, shape)]
    offsets = tuple(begin for begin, _ in ranges)
    return offsets, tuple(max(0, end - begin) for begin, end in ranges)


def new_buffer(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Uninitialized row-major memory that JAX can use without a copy on a CPU."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(nbytes + _ALIGNMENT_BYTES, np.uint8)
    skipped = -address_of(memory) % _ALIGNMENT_BYTES
    return memory[skipped : skipped + nbytes].view(dtype).reshape(shape)


Path = tuple[Any, ...]
"""The keys of ``jax.tree_util`` from the root to a leaf."""


def flatten(tree: Any) -> tuple[list[tuple[Path, Any]], Any]:
    """The leaves with their paths, and the structure. ``None`` is a leaf. Raises Invalid if the
    tree is a single leaf, which has no name."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
    if any(not path for path, _ in leaves):
        raise Invalid("the pytree is a single leaf, which has no name: put it into a dict")
    return leaves, structure


def fqn_of(path: Path) -> str:
    """The keys joined by dots: keys of dicts, positions, and names of attributes."""
    return ".".join(_text(key) for key in path)


def nested(leaves: list[tuple[Path, Any]]) -> Any:
    """The state of these leaves. Lists and tuples become lists; dicts, named tuples and registered
    classes become dicts. So do lists without some of their elements, which are empty pytrees."""
    root = _Node()
    for path, value in leaves:
        node = root
        for key in path[:-1]:
            node = node.setdefault(_identity(key), _Node())
        node[_identity(path[-1])] = value
    return _finished(root)


class _Node(dict):
    """A container, by the identities of its keys."""


def _identity(key: Any) -> tuple[bool, type, Any]:
    """Distinct for keys of different kinds, such as 0 of a list and "0" of a dict."""
    value = _value(key)
    return isinstance(key, jax.tree_util.SequenceKey), type(value), value


def _finished(node: Any) -> Any:
    if type(node) is not _Node:
        return node
    positions = [value for is_position, _, value in node if is_position]
    if node and positions == list(range(len(node))):
        return [_finished(child) for child in node.values()]
    return {value: _finished(child) for (_, _, value), child in node.items()}


def _value(key: Any) -> Any:
    """The key of a dict, a position, or the name of an attribute."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return jax.tree_util.keystr((key,), simple=True)


def _text(key: Any) -> str:
    value = _value(key)
    return repr(value) if isinstance(value, float) else str(value)
