"""Traversal of the containers that torch's state-dict tools support: dicts, lists and tuples.

Subclasses are treated like their base, and are rebuilt as plain ``dict``, ``list`` or ``tuple``.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

from cairn._tensors.sources import is_torch_tensor
from cairn.errors import Invalid, refuse

_PLAIN = (int, float, str, bytes, io.BytesIO, type(None))


def rebuild(state: Any, tensor: Callable[[Any, str], Any], type_check: bool, fqn: str = "") -> Any:
    """Returns the state with new containers, and ``tensor(value, fqn)`` in place of each tensor.
    Plain values remain the same objects. Other values are deep-copied; with ``type_check`` they
    raise Invalid instead."""
    if is_torch_tensor(state):
        return tensor(state, fqn)
    if isinstance(state, _PLAIN):
        return state
    if isinstance(state, dict):
        return {
            key: rebuild(value, tensor, type_check, _below(fqn, key))
            for key, value in state.items()
        }
    if isinstance(state, (list, tuple)):
        items = [
            rebuild(value, tensor, type_check, _below(fqn, i)) for i, value in enumerate(state)
        ]
        return tuple(items) if isinstance(state, tuple) else items
    if not type_check:
        return copy.deepcopy(state)
    raise refuse(fqn, f"of type {type(state).__name__}", "use type_check=False, or convert it")


def pairs(state: Any, other: Any, fqn: str = "") -> list[tuple[str, Any, Any]]:
    """Returns (FQN, leaf, leaf of the other state) for each leaf, in the order of ``state``. Raises
    Invalid at the first position where the containers differ."""
    if isinstance(state, dict):
        if not isinstance(other, dict) or state.keys() != other.keys():
            raise _differ(fqn, "a dict of the same keys", other)
        keys = list(state)
    elif isinstance(state, (list, tuple)):
        if not isinstance(other, (list, tuple)) or len(state) != len(other):
            raise _differ(fqn, f"a list or tuple of {len(state)}", other)
        keys = list(range(len(state)))
    else:
        if isinstance(other, (dict, list, tuple)):
            raise _differ(fqn, "a leaf", other)
        return [(fqn, state, other)]
    return [pair for key in keys for pair in pairs(state[key], other[key], _below(fqn, key))]


def _differ(fqn: str, wanted: str, other: Any) -> Invalid:
    return Invalid(
        f"'{fqn}' of the second state is {_short(other)}, not {wanted}: "
        "both must have the same structure",
        key=fqn,
    )


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {len(value)} keys"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"of type {type(value).__name__}"


def _below(fqn: str, key: Any) -> str:
    return f"{fqn}.{key}" if fqn else str(key)
