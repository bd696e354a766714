"""The nested state of keys that were renamed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from cairn._base.tree import key_of
from cairn._load.converted_keys import Key
from cairn.errors import Invalid


class _Step(NamedTuple):
    """One key on the way from the root to a leaf."""

    text: str
    key: Any
    kind: type | None
    """The type of the container at this key; None: a leaf."""


class _Container:
    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.children: dict[Any, tuple[Any, Any]] = {}
        """By text of the key, or by type and text if another key has the text: the key, and a
        container or the value of a leaf."""
        self.built: Any = None

    def build(self) -> None:
        """Requires that the containers below it are built."""
        items = [
            (key, child.built if isinstance(child, _Container) else child)
            for key, child in self.children.values()
        ]
        if issubclass(self.kind, dict):
            self.built = self.kind(dict(items))
        elif all(type(key) is int and key == i for i, (key, _) in enumerate(items)):
            self.built = self.kind([value for _, value in items])
        else:
            self.built = dict(items)


def paths_of(tree: Any) -> Iterator[tuple[tuple[_Step, ...], int | None]]:
    """The leaves of nested containers of ints, and the empty containers, each with its path."""
    pending: list[tuple[Any, tuple[_Step, ...]]] = [(tree, ())]
    while pending:
        value, path = pending.pop()
        if isinstance(value, int):
            yield path, value
            continue
        items = list(value.items() if isinstance(value, dict) else enumerate(value))
        if not items:
            yield path, None
        for key, child in reversed(items):
            kind = None if isinstance(child, int) else type(child)
            pending.append((child, (*path, _Step(key_of(key, "")[1], key, kind))))


def name_of(path: Sequence[_Step]) -> str:
    return ".".join(step.text for step in path)


def texts_of(fqn: str) -> list[str]:
    """The texts between the dots that separate keys (docs/format/keys.md)."""

    def text(escape: re.Match[str]) -> str:
        if escape[0] == ".":
            return "\0"  # not in any key
        if not escape[1] or escape[1] not in ".\\IBNF":
            raise Invalid(
                f"the name {fqn!r} has a backslash that escapes nothing: write two", key=fqn
            )
        return escape[1] if escape[1] in ".\\" else ""

    return re.sub(r"\\(.?)|\.", text, fqn, flags=re.DOTALL).split("\0")


def renamed_state(
    tree: Any, names: Sequence[str], keys: Sequence[Key], value_of: Callable[[Key], Any]
) -> Any:
    """Nests `value_of` each key. `tree` is the state before the rules, whose leaves are the sources
    of the keys, and have the `names`.

    A key with an unchanged name stays where it is. A key with a new name stays below the containers
    of its source whose keys begin the new name. The rest of the name is one key, if that of the
    source contains a "." (as in a module's state_dict), otherwise a key per path element. A list
    that does not have all of its elements in order becomes a dict by index. Raises Invalid if a key
    would be both a leaf and a container.
    """
    made: dict[int, list[Key]] = {}
    for key in keys:
        made.setdefault(key.source, []).append(key)
    root = _Container(dict if isinstance(tree, int) else type(tree))
    containers = [root]

    def insert(path: Sequence[_Step], value: Any, fqn: str, exact_steps: int) -> None:
        node = root
        for i, (text, key, kind) in enumerate(path):
            name: Any = text
            if i < exact_steps and type(node.children.get(name, (key,))[0]) is not type(key):
                name = (type(key), text)
            if name not in node.children:
                node.children[name] = (key, value if kind is None else _Container(kind))
                if kind is not None:
                    containers.append(node.children[name][1])
            elif kind is None or not isinstance(node.children[name][1], _Container):
                raise Invalid(
                    "the key would be a tensor or value and contain others too; rename one of "
                    f"them (key {fqn})",
                    key=fqn,
                )
            node = node.children[name][1]

    for path, source in paths_of(tree):
        if source is None:
            insert(path, None, name_of(path), len(path))
            continue
        for key in made.get(source, []):
            is_same = key.fqn == names[source]
            if is_same and not path and len(keys) == 1:
                return value_of(key)
            place, kept = (path, len(path)) if is_same else _renamed(path, key.fqn)
            insert(place, value_of(key), key.fqn, kept)
    for container in reversed(containers):
        container.build()
    return root.built


def _renamed(path: Sequence[_Step], name: str) -> tuple[list[_Step], int]:
    """The path of a key with the name `name` that was made of the leaf at `path`, and how many of
    its first steps are those of `path`."""
    renamed: list[_Step] = []
    rest = texts_of(name)
    while len(renamed) + 1 < len(path):
        texts = path[len(renamed)].text.split(".")
        if len(texts) >= len(rest) or rest[: len(texts)] != texts:
            break
        renamed.append(path[len(renamed)])
        rest = rest[len(texts) :]
    if path and "." in path[-1].text:
        rest = [".".join(rest)]
    kept = len(renamed)
    renamed += [_Step(text, text, dict) for text in rest[:-1]]
    # The last key of a container that has positions remains a position.
    is_same = len(renamed) + 1 == len(path) and path[-1].text == rest[-1]
    renamed.append(path[-1] if is_same else _Step(rest[-1], rest[-1], None))
    return renamed, kept
