"""The containers of a state dict, as torch's state-dict tools see them: dicts, lists and tuples.

Subclasses count as what they derive from, and come back as plain ``dict``, ``list`` or ``tuple``.
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
    """The state with new containers and ``tensor(value, fqn)`` in place of each tensor.

    Plain values stay the objects they are. Anything else is deep-copied, or with ``type_check``
    refused: raises Invalid.
    """
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
    """(FQN, leaf, leaf of the other state), in the order of ``state``.

    Raises Invalid at the first place where the containers differ.
    """
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
            raise _differ(fqn, "no container", other)
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
