"""Multi-rank saves: what each rank holds, and which rank writes what several ranks hold.

Before a save, the ranks exchange a digest of their arguments and of the layout of their tensors. If
all digests are equal, which is the common case, nothing more is needed. Otherwise they exchange the
complete layouts, and handle three cases that C++ cannot detect from one rank:

- A replicated tensor that only some ranks have (a pipeline stage, or the state of one rank) is
  written by these ranks together.
- A DTensor of which several meshes hold a copy each (tensor parallelism with one mesh per replica)
  is treated as one DTensor on a mesh with an additional dimension.
- A ShardedTensor, or another object with shards, of which several groups of ranks hold a copy each
  is written by the first group. A shard of a CheckpointableTensor that several ranks hold is
  written by the lowest of them.

Rank 0 writes the long values that it has. The other ranks send only those that it does not have.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

from cairn import _cairn
from cairn._ranks.ranks import Ranks
from cairn._ranks.sharded import REPLICATE
from cairn._save.differing import BUFFER, SAMPLED, TENSOR, VALUE, check_equal, elements_at, samples
from cairn._save.flatten import FlatState
from cairn.errors import Invalid

REPLICATED, PARTS = -1, -2  # Batch.layout(); other forms are meshes


class _Holder(NamedTuple):
    """How one rank holds a tensor."""

    rank: int
    form: int  # REPLICATED, PARTS or 0
    shape: tuple[int, ...]
    sizes: tuple[int, ...]  # of the mesh
    members: tuple[int, ...]  # ranks of the mesh, or of a ShardedTensor's process group
    placements: tuple[tuple[int, int, int], ...]


def prepare_together(
    ranks: Ranks,
    prepare: Callable[[], tuple[dict[str, Any], FlatState]],
    differing: str | None,
    buffers: Callable[[], set[str]],
) -> tuple[dict[str, Any], FlatState]:
    """Returns this rank's arguments and state, checked against the other ranks. Collective.

    ``prepare()`` returns the arguments and state; if it raises on one rank, all ranks raise. Raises
    Invalid if the arguments differ, if the patterns match nothing, or if ranks hold different data
    under one key and ``differing`` (`SaveTuning.differing`) does not permit it. ``buffers()``: the
    FQNs of buffers of modules, once the state is prepared.
    """

    def prepare_local() -> tuple[tuple[dict[str, Any], FlatState], Any]:
        prepared = prepare()
        layout, long, contents = "", "", [None, None]
        if ranks.world_size > 1:
            layout = _digest(_layout(*prepared))
            long = _digest(prepared[1].batch.long_values())
            if any(checked):
                sums = prepared[1].batch.take_samples(prepared[0]["step"], elements_at)
                contents = [one if is_checked else None for one, is_checked in zip(sums, checked)]
        return prepared, (len(prepared[1].batch) > 0, differing, layout, long, *contents)

    kinds = ({VALUE}, {TENSOR, SAMPLED, BUFFER})  # of values, of tensors
    needless = set() if differing == "refuse" else ranks.has_warned_of
    if differing is None:
        needless = needless & {VALUE}  # tensors may have to be refused
    checked = [differing != "ignore" and not of <= needless for of in kinds]
    prepared, replies = ranks.run_and_exchange(prepare_local)
    flat = prepared[1]
    has_leaves, given, layout, long, *contents = map(set, zip(*replies))
    if len(given) > 1:
        raise Invalid("SaveTuning(differing=) is not the same on all ranks")
    # A mistyped pattern must not silently save nothing.
    if flat.patterns and not any(has_leaves):
        raise Invalid(f"no key of the state matches {flat.patterns}: there is nothing to save")
    if any(len(sums) > 1 for sums in contents):

        def own() -> list[tuple[str, str, int]]:
            found = samples(flat, buffers())
            return [one for one in found if checked[one[1] != VALUE]]

        check_equal(ranks, own, differing)
    ranks.has_compared = ranks.has_compared or checked[1]
    if len(layout) > 1 or flat.copied:
        layouts = ranks.exchange_values(lambda: _layout(*prepared))
        _set_shardings(flat, layouts, ranks.rank)
    if ranks.world_size > 1:
        _leave_long_values(ranks, flat, is_same=len(long) == 1)
    return prepared


def _leave_long_values(ranks: Ranks, flat: FlatState, is_same: bool) -> None:
    """Leaves the bytes of the long values that rank 0 has, too, to rank 0. `is_same`: all ranks
    have the same ones."""
    own = flat.batch.long_values()
    first = own if is_same else ranks.on_first(lambda: own)
    if ranks.rank > 0:
        known = {tuple(one) for one in first}
        flat.batch.leave_to_first([one[0] for one in own if one in known])


def _digest(layout: list[Any]) -> str:
    import hashlib
    import json

    # Integers may be numpy's.
    encoded = json.dumps(layout, default=operator.index).encode()
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def _layout(arguments: dict[str, Any], flat: FlatState) -> list[Any]:
    boxes = {fqn: [part[:2] for part in parts] for fqn, (*_, parts) in flat.copied.items()}
    return [arguments, *flat.batch.layout(), flat.groups, boxes]


def _set_shardings(flat: FlatState, layouts: list[list[Any]], rank: int) -> None:
    for other, layout in enumerate(layouts):
        if layout[0] != layouts[0][0]:
            raise Invalid(
                f"rank 0 saves with {layouts[0][0]}, rank {other} with {layout[0]}: "
                "all ranks give the same arguments"
            )
    holders = _holders(layouts)
    meshes: dict[tuple, _cairn.Mesh] = {}
    for fqn, held in holders.items():
        local = next((one for one in held if one.rank == rank), None)
        if local is None or any(one.form != local.form or one.shape != local.shape for one in held):
            continue  # not on this rank, or C++ refuses it
        sharding = _sharding(local, held, len(layouts))
        if sharding is None:
            continue
        shape, mesh, rest = sharding
        if mesh is not None and mesh not in meshes:
            meshes[mesh] = _cairn.Mesh(*mesh)
        flat.batch.set_sharding(fqn, (shape, None if mesh is None else meshes[mesh], rest))
    for fqn, (shape, _, parts) in flat.copied.items():
        written = {
            (tuple(offsets), tuple(sizes))
            for layout in layouts[:rank]
            for offsets, sizes in layout[4].get(fqn, [])
        }
        own = [part for part in parts if part[:2] not in written]
        if len(own) < len(parts):
            flat.batch.set_sharding(fqn, (shape, None, own))


def _holders(layouts: list[list[Any]]) -> dict[str, list[_Holder]]:
    """The holders of each tensor by FQN, in the order of ranks."""
    holders: dict[str, list[_Holder]] = {}
    for rank, (_, meshes, tensors, groups, _) in enumerate(layouts):
        for fqn, form, shape, placements in tensors:
            sizes, members = meshes[form] if form >= 0 else ([], groups.get(fqn, []))
            if form >= 0 and rank not in members:
                continue
            sharding = tuple(sizes), tuple(members), tuple(map(tuple, placements))
            held = _Holder(rank, min(form, 0), tuple(shape), *sharding)
            holders.setdefault(fqn, []).append(held)
    return holders


def _sharding(local: _Holder, held: list[_Holder], world_size: int) -> tuple | None:
    """(shape, mesh, placements or parts) in place of the sharding that C++ knows; None: that one is
    right. All of `held` have the form and shape of `local`."""
    if local.form == REPLICATED:
        if len(held) == world_size:
            return None
        members = tuple(one.rank for one in held)
        return local.shape, ((len(members),), members), ((REPLICATE, 0, 1),)
    # The distinct meshes or process groups, ordered by their lowest rank.
    copies = sorted({one.members for one in held}, key=min)
    if local.form == PARTS:
        return None if local.members == copies[0] else (local.shape, None, ())
    members = tuple(rank for copy in copies for rank in copy)
    is_same_layout = all(
        one.sizes == local.sizes and one.placements == local.placements for one in held
    )
    if len(copies) == 1 or not is_same_layout or len(set(members)) < len(members):
        return None
    mesh = ((len(copies), *local.sizes), members)
    return local.shape, mesh, ((REPLICATE, 0, 1), *local.placements)
