"""Node kinds of a state's tree, the text of keys that are not strings, the items of DCP, and the
reserved keys of a step that contains a model of Hugging Face (docs/import-export.md).

The C++ side traverses states and builds them (python/src/walk.cc, step_contents.cc).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cairn._base.dtypes import is_numpy_text
from cairn.errors import Invalid

# schema/structure.fbs, NodeKind.
DICT, ORDERED_DICT, COUNTER, LIST, TUPLE, TORCH_SIZE = range(6)
TENSOR, NUMPY_ARRAY, NUMPY_SCALAR, VALUE = range(6, 10)
MAPPINGS = (DICT, ORDERED_DICT, COUNTER)

FILES, WEIGHTS = "__files__", "__weights__"

# schema/structure.fbs, KeyKind.
ROOT_KEY, INDEX_KEY, STRING_KEY, INT_KEY, BOOL_KEY, NONE_KEY, FLOAT_KEY = range(7)

_KEYS: dict[type, tuple[int, Callable[[Any], str]]] = {
    str: (STRING_KEY, str),
    int: (INT_KEY, str),
    bool: (BOOL_KEY, str),
    type(None): (NONE_KEY, str),
    float: (FLOAT_KEY, repr),
}


def key_of(key: Any, container_fqn: str) -> tuple[int, str]:
    """Kind and text of a key. Raises Invalid for a key that cannot be part of an FQN."""
    entry = _KEYS.get(str if is_numpy_text(key) and isinstance(key, str) else type(key))
    if entry is None:
        raise Invalid(
            f"the dict '{container_fqn}' has a key {key!r} of type {type(key).__name__}: "
            "keys are str, int, float, bool or None",
            key=container_fqn,
        )
    kind, text_of = entry
    try:
        return kind, text_of(key)
    except ValueError:  # an int with thousands of digits
        raise Invalid(
            f"the dict '{container_fqn}' has an int key too long for a name", key=container_fqn
        ) from None


def dcp_items(
    value: Any, is_tensor: Callable[[Any], bool], path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """What torch.distributed.checkpoint saves separately, with its path. It descends into dicts,
    and into lists that contain a tensor or, at any depth, a dict; everything else is one item."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from dcp_items(child, is_tensor, (*path, str(key)))
    elif isinstance(value, list) and _is_divided(value, is_tensor):
        for i, child in enumerate(value):
            yield from dcp_items(child, is_tensor, (*path, i))
    else:
        yield path, value


def _is_divided(values: list[Any], is_tensor: Callable[[Any], bool]) -> bool:
    return any(
        isinstance(value, dict)
        or is_tensor(value)
        or (isinstance(value, list) and _is_divided(value, is_tensor))
        for value in values
    )
