"""Conversion of a nested state to one batch for the C++ side."""

from __future__ import annotations

from typing import Any, NamedTuple

from cairn import _cairn
from cairn._ranks.ranks import Ranks
from cairn._ranks.sharded import Shards
from cairn._tensors.host_copies import HostCopies
from cairn._tensors.sources import Sources


class FlatState(NamedTuple):
    """A state for the C++ side."""

    batch: _cairn.Batch
    groups: dict[str, list[int]]
    """Ranks that hold one copy of each tensor that is described as boxes, by FQN."""
    patterns: list[str]
    """The patterns that selected it; empty if it is the complete state."""


def flatten(
    state: Any,
    allow_pickle: bool,
    ranks: Ranks,
    patterns: list[str],
    copies: HostCopies | None = None,
    *,
    devices: bool = False,
) -> FlatState:
    """Flattens the leaves that `patterns` select.

    The batch borrows the memory of the tensors and keeps its owners alive. Tensors on a device are
    copied into `copies`, by default into memory of this batch; with `devices`, those that C++ can
    access are borrowed too. Leaves of type _cairn.Pickle are saved as pickles.

    Raises Invalid for a leaf that cannot be saved.
    """
    shards = Shards(ranks)
    sources = Sources(shards, copies, devices=devices)

    def take(value: Any, fqn: str) -> tuple | _cairn.Pickle:
        if isinstance(value, _cairn.Pickle):
            return value
        source = sources.take(value, fqn)
        if source is not None:
            return source
        from cairn._save.pickles import pickled

        return pickled(value, fqn, allow_pickle)

    return FlatState(_cairn.flatten(state, take, patterns, devices), shards.groups, patterns)
