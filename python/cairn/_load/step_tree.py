"""A step, or what is selected of it, as nested containers with the positions of its leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from cairn import _cairn
from cairn._tensors.contents import Leaf, leaf_at
from cairn._tensors.stateful import name_of
from cairn.errors import Invalid

ABSENT = object()
"""In place of a part that a step or a state lacks."""


class Subclass:
    """A tensor subclass of the step: its inner tensors and its description are `items`."""

    def __init__(self, items: dict[str, Any], fqn: str) -> None:
        self.items, self.fqn = items, fqn


class StepTree:
    """The tree. A leaf is an int, the position in the contents; a tensor subclass is a `Subclass`.

    Args:
        selected: FQNs of the leaves that the tree has. A part of a list is a dict, as it is where
            patterns select what is read.
        strip_wrappers: whether names match without those of wrappers.
    """

    def __init__(
        self, contents: _cairn.Contents, selected: Collection[str], strip_wrappers: bool
    ) -> None:
        self._contents, self._selected = contents, frozenset(selected)
        self._fqns: list[str] = contents.fqns()
        self._bare: Callable[[str], str] = _cairn.without_wrappers if strip_wrappers else str
        self._root = self._part(contents.build(list(range(len(contents))), Subclass))
        self._keys: dict[int, dict[str, list[Any]]] = {}
        """Keys by text of the dicts of the tree, by id."""

    def leaves(self, tree: Any) -> list[str]:
        """The FQNs of the leaves of a part of the tree."""
        if isinstance(tree, int):
            return [self._fqns[tree]]
        items = tree.items if isinstance(tree, Subclass) else tree
        below = items.values() if isinstance(items, dict) else items
        return [fqn for one in below for fqn in self.leaves(one)]

    def leaf(self, position: int) -> Leaf:
        """The leaf at a position."""
        return leaf_at(self._contents, position)

    def find(self, fqn: str) -> Any:
        """What the step has under a name; `ABSENT` if it has nothing."""
        return self._find(self._root, self._bare(fqn))

    def keys(self, items: dict, fqn: str) -> dict[str, Any]:
        """The keys of a dict of the step or of an object by their texts, with which both match.
        Raises Invalid if two of them have one text."""
        keys = self._keys_of(items)
        for same in keys.values():
            self._check_one(same, fqn)
        return {text: same[0] for text, same in keys.items()}

    def _part(self, tree: Any) -> Any:
        if isinstance(tree, int):
            return tree if self._fqns[tree] in self._selected else ABSENT
        if self._selected.issuperset(self.leaves(tree)):
            return tree
        items = tree.items if isinstance(tree, Subclass) else tree
        kind, pairs = dict, enumerate(items)
        if isinstance(items, dict):
            kind, pairs = type(items), items.items()
        part = ((key, self._part(one)) for key, one in pairs)
        return kind((key, one) for key, one in part if one is not ABSENT) or ABSENT

    def _find(self, tree: Any, name: str) -> Any:
        if not name:
            return tree
        if not isinstance(tree, dict):
            return ABSENT
        if id(tree) not in self._keys:
            self._keys[id(tree)] = self._keys_of(tree)
        keys = self._keys[id(tree)]
        end = len(name)
        while end > 0:
            if name[:end] in keys:
                found = self._find(tree[keys[name[:end]][0]], name[end + 1 :])
                if found is not ABSENT:
                    self._check_one(keys[name[:end]], name)
                    return found
            end = name.rfind(".", 0, end)
        return ABSENT

    def _keys_of(self, items: dict) -> dict[str, list[Any]]:
        keys: dict[str, list[Any]] = {}
        for key in items:
            keys.setdefault(self._bare(name_of(key)), []).append(key)
        return keys

    def _check_one(self, keys: list[Any], fqn: str) -> None:
        if len(keys) > 1:
            raise Invalid(
                f"'{fqn}' has the keys {keys[0]!r} and {keys[1]!r}, which a load into an object "
                f"cannot tell apart: rename one, or use Store.load with keys='!{fqn}'",
                key=fqn,
                step=self._contents.step,
            )
