"""State dicts as one dict by path, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Union

from cairn.errors import Invalid

Path = tuple[Union[str, int], ...]


def flatten_state_dict(state_dict: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Path]]:
    """One dict from FQN to leaf, and a mapping from FQN to the path that it stands for.

    Mappings, lists and tuples are descended at every level; path elements are ``str`` for keys of
    mappings (converted if need be) and ``int`` for positions, and the FQN is their join with ".".
    Leaves are the same objects. Empty containers leave no trace.

    Counterpart of torch's ``_flatten_state_dict``; the results are the same.

    Raises:
        Invalid: two leaves have one FQN (torch: ValueError).
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
    """The nested state of a flat one: the inverse of :func:`flatten_state_dict`.

    Tuples come back as lists. ``state_dict`` may hold a part of what was flattened: lists get
    ``None`` in front of and between the elements that are there.

    Counterpart of torch's ``_unflatten_state_dict``; the results are the same.

    Raises:
        Invalid: ``mapping`` lacks a key of ``state_dict`` (torch: KeyError), or sends two of them
            through one place, once as a list and once as a dict.
    """
    nested: dict[str, Any] = {}
    for fqn, value in state_dict.items():
        path = mapping.get(fqn)
        if not path:
            raise Invalid(
                f"the mapping has no path for '{fqn}': give the one it came with", key=fqn
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
        raise Invalid(f"'{fqn}' leads through a list by {element!r}, which is no position", key=fqn)
