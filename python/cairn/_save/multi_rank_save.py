"""Multi-rank saves: what each rank holds, and which rank writes what several ranks hold.

Before a save, the ranks exchange digests of their arguments and of the layout of their tensors. If
the layouts are equal, which is the common case, or as in the last save, nothing more is needed.
Otherwise they exchange the complete layouts, and handle three cases that C++ cannot detect from one
rank:

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
from cairn._save.differing import (
    ONE_VALUE,
    PARTS,
    REPLICATED,
    VALUE,
    Compared,
    Groups,
    check_equal,
    differing_groups,
    differing_keys,
    groups_of,
    samples,
)
from cairn._save.flatten import FlatState
from cairn.errors import Invalid


class Layouts(NamedTuple):
    """What the ranks hold, and what follows for this rank. Valid as long as no digest changes."""

    digests: list[str]
    """By rank."""
    shardings: list[tuple[str, tuple]]
    """By FQN, in place of those that C++ knows."""
    written: dict[str, set[tuple]]
    """(offsets, sizes) of the shards that lower ranks write, by FQN, where shards may be copies."""
    groups: Groups | None
    """None: all ranks have all leaves."""


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
    returned_to: Callable[[dict[str, Any]], dict[str, Any]],
) -> tuple[dict[str, Any], FlatState]:
    """Returns this rank's arguments and state, checked against the other ranks. Collective.

    ``prepare()`` returns the arguments and state; if it raises on one rank, all ranks raise. Raises
    Invalid if the arguments differ, if the patterns match nothing, or if ranks hold different data
    under one key and ``differing`` (`SaveTuning.differing`) does not permit it. ``buffers()``: the
    FQNs of buffers of modules, once the state is prepared. ``returned_to(arguments)``:
    the arguments that choose the step to which a rank has gone back as the base; those of rank 0
    count.
    """
    if ranks.world_size == 1:
        arguments, flat = prepare()
        _check_matched(flat, len(flat.batch) > 0)
        return arguments | returned_to(arguments), flat
    everyone = Groups(b"", [tuple(range(ranks.world_size))])
    compared = ranks.compared = ranks.compared or Compared()

    def prepare_local() -> tuple[tuple[dict[str, Any], FlatState], Any]:
        arguments, flat = prepare()
        batch = flat.batch
        layout = _digest([batch.layout_digest(), *_described(flat)])
        needed = compared.take_samples(batch, arguments["step"], *compared.needs(differing))
        known: Layouts | None = ranks.layouts
        groups = everyone
        if known is not None and known.digests[ranks.rank] == layout:
            groups = known.groups or everyone
        sums = groups.sums(batch, ranks.rank) if any(needed) else []
        own = len(batch) > 0, differing, _digest(arguments), layout, _digest(batch.long_values())
        base = returned_to(arguments) if ranks.rank == 0 else {}
        return (arguments, flat), (*own, base, needed, groups is not everyone, sums)

    (arguments, flat), replies = ranks.run_and_exchange(prepare_local)
    has_leaves, given, saved_with, digests, long, bases, *rest = map(list, zip(*replies))
    needed, is_grouped, sums = rest
    if len(set(given)) > 1:
        raise Invalid("SaveTuning(differing=) is not the same on all ranks")
    _check_matched(flat, any(has_leaves))
    if len(set(saved_with)) > 1:
        _refuse_arguments(ranks.exchange_values(lambda: arguments))
    layouts = ranks.layouts
    is_known = layouts is not None and layouts.digests == digests
    is_equal = len(set(digests)) == 1 and not flat.copied
    if not is_known:
        if is_equal:
            layouts = Layouts(digests, [], {}, None)
        else:
            all_layouts = ranks.exchange_values(lambda: _layout(flat))
            layouts = Layouts(digests, *_arranged(all_layouts, ranks.rank))
        ranks.layouts = layouts
    values, tensors = map(all, zip(*needed))
    if values or tensors:
        groups = layouts.groups or everyone
        if not is_known and (not is_equal or any(is_grouped)):
            sums = ranks.exchange_values(lambda: groups.sums(flat.batch, ranks.rank))
        found = differing_groups(sums, values, tensors)
        if found:

            def own() -> list[tuple[str, str, int]]:
                return [
                    one if (values if one[1] == VALUE else tensors) else (*one[:2], 0)
                    for one in samples(flat, buffers())
                ]

            different = differing_keys(ranks, groups, found, own)
            check_equal(ranks, different, differing)
    compared.has_compared |= tensors
    for fqn, sharding in layouts.shardings:
        flat.batch.set_sharding(fqn, sharding)
    for fqn, (shape, _, parts) in flat.copied.items():
        own_parts = [part for part in parts if part[:2] not in layouts.written.get(fqn, ())]
        if len(own_parts) < len(parts):
            flat.batch.set_sharding(fqn, (shape, None, own_parts))
    _leave_long_values(ranks, flat, is_same=len(set(long)) == 1)
    return arguments | bases[0], flat


def _check_matched(flat: FlatState, has_leaves: bool) -> None:
    # A mistyped pattern must not silently save nothing.
    if flat.patterns and not has_leaves:
        raise Invalid(f"no key of the state matches {flat.patterns}: there is nothing to save")


def _leave_long_values(ranks: Ranks, flat: FlatState, is_same: bool) -> None:
    """Leaves the bytes of the long values that rank 0 has, too, to rank 0. `is_same`: all ranks
    have the same ones."""
    own = flat.batch.long_values()
    first = own if is_same else ranks.on_first(lambda: own)
    if ranks.rank > 0:
        known = {tuple(one) for one in first}
        flat.batch.leave_to_first([one[0] for one in own if one in known])


def _refuse_arguments(arguments: list[dict[str, Any]]) -> None:
    other = next(rank for rank, one in enumerate(arguments) if one != arguments[0])
    raise Invalid(
        f"rank 0 saves with {arguments[0]}, rank {other} with {arguments[other]}: "
        "all ranks give the same arguments"
    )


def _digest(described: Any) -> str:
    import hashlib
    import json

    # Integers may be numpy's.
    encoded = json.dumps(described, default=operator.index).encode()
    return hashlib.blake2b(encoded, digest_size=16).hexdigest()


def _described(flat: FlatState) -> tuple[Any, Any]:
    """What the layout of the batch does not contain."""
    boxes = {fqn: [part[:2] for part in parts] for fqn, (*_, parts) in flat.copied.items()}
    return flat.groups, boxes


def _layout(flat: FlatState) -> list[Any]:
    return [*flat.batch.layout(values=True), *_described(flat)]


def _arranged(
    layouts: list[list[Any]], rank: int
) -> tuple[list[tuple[str, tuple]], dict[str, set[tuple]], Groups]:
    """What follows for a rank from the layouts of all ranks."""
    leaves = [[(fqn, form) for fqn, form, *_ in layout[1]] for layout in layouts]
    shardings = []
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
        shardings.append((fqn, (shape, None if mesh is None else meshes[mesh], rest)))
    written: dict[str, set[tuple]] = {}
    for *_, boxes in layouts[:rank]:
        for fqn, of_rank in boxes.items():
            found = written.setdefault(fqn, set())
            found.update((tuple(at), tuple(sizes)) for at, sizes in of_rank)
    return shardings, written, groups_of(leaves, rank)


def _holders(layouts: list[list[Any]]) -> dict[str, list[_Holder]]:
    """The holders of each tensor by FQN, in the order of ranks."""
    holders: dict[str, list[_Holder]] = {}
    for rank, (meshes, leaves, groups, _) in enumerate(layouts):
        for fqn, form, shape, placements in leaves:
            if form == ONE_VALUE:
                continue
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
