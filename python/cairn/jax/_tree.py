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
    root: dict[Any, Any] = {}
    for path, value in leaves:
        node = root
        for key in path[:-1]:
            node = node.setdefault(_Key(key), {})
        node[_Key(path[-1])] = _Leaf(value)
    return _finished(root)


class _Key:
    """A key of a path. Keys of different kinds differ, such as 0 of a list and "0" of a dict."""

    def __init__(self, key: Any) -> None:
        self.is_position = isinstance(key, jax.tree_util.SequenceKey)
        self.value = _value(key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self._parts())

    def _parts(self) -> tuple[Any, ...]:
        return self.is_position, type(self.value), self.value


class _Leaf:
    def __init__(self, value: Any) -> None:
        self.value = value


def _finished(node: Any) -> Any:
    if isinstance(node, _Leaf):
        return node.value
    positions = [key.value for key in node if key.is_position]
    if node and positions == list(range(len(node))):
        return [_finished(child) for child in node.values()]
    return {key.value: _finished(child) for key, child in node.items()}


def _value(key: Any) -> Any:
    """The key of a dict, a position, or the name of an attribute."""
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return jax.tree_util.keystr((key,), simple=True)


def _text(key: Any) -> str:
    value = _value(key)
    return repr(value) if isinstance(value, float) else str(value)
