"""The shape of a state: walking a user's nested state, and building one from a stored tree.

A state is walked in preorder into nodes, each with the FQN of what lies there; a stored tree is
the same as parallel vectors (see core/state_dict.h). Both directions are here so that they stay
inverse.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cairn.dtypes import loaded_torch, require_torch
from cairn.errors import Invalid

# schema/structure.fbs, NodeKind.
DICT, ORDERED_DICT, COUNTER, LIST, TUPLE, TORCH_SIZE = range(6)
TENSOR, NUMPY_ARRAY, NUMPY_SCALAR, VALUE = range(6, 10)
MAPPINGS = (DICT, ORDERED_DICT, COUNTER)
LEAF = -1
"""Kind of a node that is no container; what it is, is for the caller to find out."""

# schema/structure.fbs, KeyKind.
ROOT_KEY, INDEX_KEY, STRING_KEY, INT_KEY, BOOL_KEY, NONE_KEY, FLOAT_KEY = range(7)

MAX_DEPTH = 1000
"""Levels of nesting; deeper states are taken for ones that contain themselves."""

_CONTAINERS: dict[type, int] = {
    dict: DICT,
    OrderedDict: ORDERED_DICT,
    Counter: COUNTER,
    list: LIST,
    tuple: TUPLE,
}

_KEYS: dict[type, tuple[int, Callable[[Any], str]]] = {
    str: (STRING_KEY, str),
    int: (INT_KEY, str),
    bool: (BOOL_KEY, str),
    type(None): (NONE_KEY, str),
    float: (FLOAT_KEY, repr),
}

_KEY_VALUES: dict[int, Callable[[str], Any]] = {
    INDEX_KEY: int,
    STRING_KEY: str,
    INT_KEY: int,
    BOOL_KEY: {"True": True, "False": False}.__getitem__,
    NONE_KEY: lambda text: None,
    FLOAT_KEY: float,
}


@dataclass
class Node:
    """One node of a walked state."""

    __slots__ = (
        "value",
        "kind",
        "key_kind",
        "key",
        "text",
        "fqn",
        "parent",
        "depth",
        "child_count",
    )

    value: Any
    kind: int
    key_kind: int
    key: Any
    """The key itself, for replacing the value in its parent."""
    text: str
    """The key's text: the last path element of the FQN."""
    fqn: str
    parent: int
    """Index of the parent's node; -1 for the root."""
    depth: int
    child_count: int


@dataclass
class Tree:
    """A stored tree: parallel vectors in preorder."""

    __slots__ = ("kinds", "key_kinds", "keys", "child_counts")

    kinds: bytes
    key_kinds: bytes
    keys: list[str]
    child_counts: list[int]


def _container_kind(value: Any) -> int:
    kind = _CONTAINERS.get(type(value))
    if kind is not None:
        return kind
    torch = loaded_torch()
    return TORCH_SIZE if torch is not None and type(value) is torch.Size else LEAF


def key_of(key: Any, container_fqn: str) -> tuple[int, str]:
    """Kind and text of a key. Raises Invalid for one that no FQN can be made of."""
    entry = _KEYS.get(type(key))
    if entry is None:
        raise Invalid(
            f"the dict '{container_fqn}' has a key {key!r} of type {type(key).__name__}: "
            "keys are str, int, float, bool or None",
            key=container_fqn,
        )
    kind, text_of = entry
    try:
        return kind, text_of(key)
    except ValueError:  # ints of thousands of digits
        raise Invalid(
            f"the dict '{container_fqn}' has an int key too long for a name", key=container_fqn
        ) from None


def walk(state: Any) -> list[Node]:
    """The nodes of `state` in preorder. Raises Invalid for keys that no FQN can be made of."""
    nodes: list[Node] = []
    pending = [Node(state, _container_kind(state), ROOT_KEY, None, "", "", -1, 0, 0)]
    while pending:
        node = pending.pop()
        index = len(nodes)
        nodes.append(node)
        if node.kind == LEAF:
            continue
        if node.depth == MAX_DEPTH:
            raise Invalid(
                f"the state is nested deeper than {MAX_DEPTH} levels: does it contain itself?",
                key=node.fqn,
            )
        children = _children(node, index)
        node.child_count = len(children)
        pending.extend(reversed(children))
    return nodes


def _children(node: Node, index: int) -> list[Node]:
    prefix = node.fqn + "." if node.parent >= 0 else ""
    depth = node.depth + 1
    children = []
    if node.kind in MAPPINGS:
        for key, value in node.value.items():
            key_kind, text = key_of(key, node.fqn)
            children.append(
                Node(
                    value,
                    _container_kind(value),
                    key_kind,
                    key,
                    text,
                    prefix + text,
                    index,
                    depth,
                    0,
                )
            )
    else:
        for i, value in enumerate(node.value):
            text = str(i)
            children.append(
                Node(
                    value,
                    _container_kind(value),
                    INDEX_KEY,
                    i,
                    text,
                    prefix + text,
                    index,
                    depth,
                    0,
                )
            )
    return children


def build(tree: Tree, leaves: list[Any]) -> Any:
    """The nested state of `tree` with `leaves` (in tree order) at its leaves."""
    # From the last node to the first: a container then finds its children complete, in order.
    built: list[tuple[int, str, Any]] = []
    next_leaf = len(leaves)
    for i in range(len(tree.kinds) - 1, -1, -1):
        if tree.kinds[i] > TORCH_SIZE:
            next_leaf -= 1
            value = leaves[next_leaf]
        else:
            children = [built.pop() for _ in range(tree.child_counts[i])]
            value = _container(tree.kinds[i], children)
        built.append((tree.key_kinds[i], tree.keys[i], value))
    return built[0][2]


def _container(kind: int, children: list[tuple[int, str, Any]]) -> Any:
    if kind in MAPPINGS:
        items = {_KEY_VALUES[key_kind](text): value for key_kind, text, value in children}
        return items if kind == DICT else (OrderedDict if kind == ORDERED_DICT else Counter)(items)
    values = [value for _, _, value in children]
    if kind == LIST:
        return values
    return tuple(values) if kind == TUPLE else require_torch().Size(values)
