"""Conversion of a nested state to one batch for the C++ side."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from cairn import _cairn
from cairn._base.dtypes import is_numpy_text
from cairn._base.tree import STRING_KEY, key_of
from cairn._ranks.ranks import Ranks
from cairn._ranks.sharded import Sharding, Shards
from cairn._tensors.host_copies import HostCopies
from cairn._tensors.sources import Sources
from cairn.errors import Invalid, Refusals


class FlatState(NamedTuple):
    """A state for the C++ side."""

    batch: _cairn.Batch
    groups: dict[str, list[int]]
    """Ranks that hold one copy of each tensor that is described as boxes, by FQN."""
    copied: dict[str, Sharding]
    """The shardings of shards that other ranks may hold too, by FQN."""
    patterns: list[str]
    """The patterns that selected it; empty if it is the complete state."""


def flatten(
    state: Any,
    allow_pickle: bool,
    ranks: Ranks,
    patterns: list[str],
    copies: HostCopies | None = None,
    *,
    bytes_io: bool = True,
    parts: bool = False,
    refusals: Refusals | None = None,
    known: _cairn.Batch | None = None,
) -> FlatState:
    """Flattens the leaves that `patterns` select.

    The batch borrows the memory of the tensors and keeps its owners alive. Tensors that C++ cannot
    access are copied into `copies`, by default into memory of this batch. With `parts`, one rank
    alone may hold a part of a tensor. Leaves of type _cairn.Pickle are saved as pickles, and with
    `bytes_io` those of type io.BytesIO as bytes. `known`, a released batch, is used if it
    describes this state; C++ then keeps the memory of what the save reads when it asks for it.

    Raises Invalid for leaves that cannot be saved, all of them together. With `refusals`, they are
    added to it instead, and the batch has None in their place.
    """
    if known is not None and not patterns and known.take_again(state):
        return FlatState(known, {}, {}, patterns)
    found = Refusals() if refusals is None else refusals
    shards = Shards(ranks)
    sources = Sources(shards, copies, parts=parts)

    def take(value: Any, fqn: str) -> Any:
        try:
            return source_of(value, fqn)
        except Invalid as error:
            found.add(error)
            return None

    def take_key(key: Any, container_fqn: str) -> tuple[int, str]:
        try:
            return key_of(key, container_fqn)
        except Invalid as error:
            found.add(error)
            return STRING_KEY, repr(key)

    def source_of(value: Any, fqn: str) -> Any:
        if isinstance(value, _cairn.Pickle):
            return value
        if is_numpy_text(value):
            return str(value) if isinstance(value, str) else bytes(value)
        if bytes_io and type(value) is io.BytesIO:
            return value.getvalue()
        source = sources.take(value, fqn)
        if source is not None:
            return source
        from cairn._save.pickles import pickled

        return pickled(value, fqn, allow_pickle)

    try:
        batch = _cairn.flatten(state, take, patterns, True, take_key)
    except Invalid as error:
        found.add(error)
        found.raise_all()
    if refusals is None:
        found.raise_all()
    return FlatState(batch, shards.groups, shards.copied, patterns)
