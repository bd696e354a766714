"""Conversion between nested and flat state dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from cairn.errors import Invalid

Path = tuple[Union[str, int], ...]


def flatten_state_dict(state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """Returns a dict from FQN to leaf, and a mapping from FQN to the path of the leaf.

    Mappings, lists and tuples are flattened at every level. Path elements are ``str`` for keys of
    mappings (converted if necessary) and ``int`` for positions; the FQN joins them with ".".
    Leaves are the same objects. Empty containers are dropped.

    Counterpart of torch's ``_flatten_state_dict``, with the same results.

    Raises:
        Invalid: two leaves have the same FQN (torch: ValueError).
    """
    flat: dict[str, Any] = {}
    mapping: dict[str, Path] = {}

    def visit(path: Path, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                visit((*path, str(key)), item)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                visit((*path, index), item)
        else:
            fqn = ".".join(map(str, path))
            if fqn in flat:
                raise Invalid(f"two leaves are named '{fqn}': rename a key", key=fqn)
            flat[fqn] = value
            mapping[fqn] = path

    for key, value in state_dict.items():
        visit((str(key),), value)
    return flat, mapping


def unflatten_state_dict(state_dict: dict[str, Any], mapping: dict[str, Path]) -> dict[str, Any]:
    """Returns the nested state of a flat one: the inverse of :func:`flatten_state_dict`.

    Tuples become lists. ``state_dict`` may contain a part of what was flattened: in lists, missing
    elements before and between the others are ``None``.

    Counterpart of torch's ``_unflatten_state_dict``, with the same results.

    Raises:
        Invalid: ``mapping`` lacks a key of ``state_dict`` (torch: KeyError), or the paths of two
            keys disagree on whether a container is a list or a dict.
    """
    nested: dict[str, Any] = {}
    for fqn, value in state_dict.items():
        path = mapping.get(fqn)
        if not path:
            raise Invalid(
                f"the mapping has no path for '{fqn}': pass the mapping of this state", key=fqn
            )
        container: Any = nested
        for element, below in zip(path, path[1:]):
            container = _descend(container, element, {} if isinstance(below, str) else [], fqn)
        _put(container, path[-1], value, fqn)
    return nested


def _descend(container: Any, element: str | int, empty: Any, fqn: str) -> Any:
    present = _get(container, element, fqn)
    if present is None:
        _put(container, element, empty, fqn)
        return empty
    if not isinstance(present, (dict, list)):
        raise Invalid(f"'{fqn}' leads through '{element}', which is a leaf", key=fqn)
    return present


def _get(container: Any, element: str | int, fqn: str) -> Any:
    if isinstance(container, dict):
        return container.get(element)
    _check_index(container, element, fqn)
    return container[element] if element < len(container) else None


def _put(container: Any, element: str | int, value: Any, fqn: str) -> None:
    if not isinstance(container, dict):
        _check_index(container, element, fqn)
        container.extend([None] * (element + 1 - len(container)))
    container[element] = value


def _check_index(container: list, element: str | int, fqn: str) -> None:
    if not isinstance(element, int) or element < 0:
        raise Invalid(f"'{fqn}' indexes a list with {element!r}, which is not a position", key=fqn)
