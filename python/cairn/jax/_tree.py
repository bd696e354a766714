"""Names of the leaves of pytrees, and the nested state with these names."""

from __future__ import annotations

from typing import Any

import jax

from cairn.errors import Invalid

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
