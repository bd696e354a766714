"""What ranks hold under one key, but a step stores once: which keys differ, and what to do.

Each rank sends two sums of its samples (of values and of tensors) for each group of leaves that the
same ranks hold. Only if sums of a group differ, they exchange sums of parts of it, and then the
samples of the parts that differ.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

from cairn import _cairn
from cairn._base.devices import current_streams
from cairn._ranks.arrival import named_ranks
from cairn._ranks.ranks import Ranks
from cairn._save.flatten import FlatState
from cairn.errors import Error, Invalid

VALUE, TENSOR, SAMPLED, BUFFER = "value", "tensor", "sampled", "buffer"
"""The kind of a key. The elements of a sampled tensor that ranks compare depend on the step."""

REPLICATED, PARTS, ONE_VALUE = -1, -2, -3  # Batch.layout(); other forms are meshes

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_NAMED_KEYS = 10
_ALONE = 0xFFFFFFFF  # the group of leaves that no other rank has, or that are not compared
_PARTS = 256  # of a group

Sample = tuple[str, str, int]
"""FQN, kind and digest."""


class Groups(NamedTuple):
    """The leaves of this rank that other ranks have too, by the ranks that have them."""

    numbers: bytes
    """The group of each leaf, in 32 bits; empty if all ranks have all leaves, in the same order."""
    holders: list[tuple[int, ...]]
    """By group, also of those of other ranks."""

    def sums(self, batch: _cairn.Batch, rank: int) -> list[tuple[int, tuple[int, int]]]:
        """(group, sums of values and of tensors) of the groups of a rank."""
        found = enumerate(batch.sample_sums(self.numbers, len(self.holders)))
        return [(group, sums) for group, sums in found if rank in self.holders[group]]

    def of_leaves(self, count: int) -> array[int]:
        return array("I", self.numbers or bytes(4 * count))


def groups_of(layouts: list[list[tuple[str, int]]], rank: int) -> Groups:
    """The groups of the leaves of a rank. `layouts`: (FQN, form) of the leaves of each rank, in
    the order of its tree."""
    holders: dict[tuple[str, int], list[int]] = {}
    for holder, leaves in enumerate(layouts):
        for fqn, form in leaves:
            if form in (REPLICATED, ONE_VALUE):
                holders.setdefault((fqn, form), []).append(holder)
    found = sorted({tuple(one) for one in holders.values() if len(one) > 1})
    numbers = {one: number for number, one in enumerate(found)}
    own = (numbers.get(tuple(holders.get(leaf, ())), _ALONE) for leaf in layouts[rank])
    return Groups(array("I", own).tobytes(), found)


class Compared:
    """What the saves of one store object have compared, or those of one address."""

    def __init__(self) -> None:
        self.has_compared = False
        """Whether a save has compared the tensors of the ranks and was not refused."""
        self.has_warned_of: set[str] = set()
        """Kinds of contents that differ between ranks, of which a warning has been issued."""

    def needs(self, differing: str | None) -> tuple[bool, bool]:
        """Whether a save compares values, and tensors."""
        needless = set() if differing == "refuse" else self.has_warned_of
        if differing is None:
            needless = needless & {VALUE}  # tensors may have to be refused
        kinds = ({VALUE}, {TENSOR, SAMPLED, BUFFER})
        values, tensors = (differing != "ignore" and not of <= needless for of in kinds)
        return values, tensors

    def take_samples(
        self, batch: _cairn.Batch, step: int, values: bool, tensors: bool
    ) -> tuple[bool, bool]:
        """Digests what is compared of a batch. Returns whether that are values, and tensors."""
        is_first = not self.has_compared
        if values or tensors:
            try:
                streams = current_streams(batch.devices())
                batch.take_samples(step, is_first, values, tensors, streams)
            except Error:  # a device without free memory; the save itself may need less
                tensors = False
                batch.take_samples(step, is_first, values, tensors, [])
        return values, tensors


class Difference(NamedTuple):
    """Ranks that hold something else than the lowest rank with the key."""

    fqn: str
    kind: str
    lowest: int
    others: list[int]


def samples(flat: FlatState, buffers: set[str]) -> list[Sample]:
    """What `Batch.take_samples` has digested, with 0 for other leaves, in the order of the tree.
    `buffers`: FQNs."""

    def kind_of(fqn: str, is_tensor: bool, is_complete: bool) -> str:
        if not is_tensor:
            return VALUE
        if fqn in buffers or fqn.rsplit(".", 1)[-1] in _STATISTICS:
            return BUFFER
        return TENSOR if is_complete else SAMPLED

    return [
        (fqn, kind_of(fqn, is_tensor, is_complete), one)
        for fqn, is_tensor, is_complete, one in flat.batch.samples()
    ]


def differences(of_ranks: list[list[Sample]]) -> list[Difference]:
    """The keys that differ, of the samples of all ranks; those of tensors first."""
    held: dict[tuple[bool, str], dict[int, tuple[str, int]]] = {}
    for rank, own in enumerate(of_ranks):
        for fqn, kind, digest in own:
            held.setdefault((kind == VALUE, fqn), {})[rank] = kind, digest
    found = []
    for (_, fqn), by_rank in sorted(held.items()):
        lowest = min(by_rank)
        others = [rank for rank, (_, one) in by_rank.items() if one != by_rank[lowest][1]]
        if others:
            kinds = {kind for kind, _ in by_rank.values()}
            kind = BUFFER if BUFFER in kinds else by_rank[lowest][0]
            found.append(Difference(fqn, kind, lowest, others))
    return found


def differing_groups(sums: list[list[Any]], values: bool, tensors: bool) -> set[int]:
    """The groups of which the sums of two ranks differ, in values or in tensors."""
    found: dict[int, set[tuple[int, int]]] = {}
    for of_rank in sums:
        for group, (of_values, of_tensors) in of_rank:
            chosen = of_values if values else 0, of_tensors if tensors else 0
            found.setdefault(group, set()).add(chosen)
    return {group for group, different in found.items() if len(different) > 1}


def differing_keys(
    ranks: Ranks, groups: Groups, differing: set[int], own: Callable[[], list[Sample]]
) -> list[Difference]:
    """The keys in these groups that differ. `own()`: the samples of all leaves, in the order of
    the tree. Collective."""
    import zlib

    parts: dict[tuple[int, int], list[Sample]] = {}

    def sums_of_parts() -> list[tuple[int, int, int]]:
        found = own()
        for group, one in zip(groups.of_leaves(len(found)), found, strict=True):
            if group in differing and one[2]:
                part = zlib.crc32(one[0].encode("utf-8", "surrogatepass")) % _PARTS
                parts.setdefault((group, part), []).append(one)
        return [(*key, sum(one[2] for one in leaves)) for key, leaves in parts.items()]

    sums: dict[tuple[int, int], set[int]] = {}
    for of_rank in ranks.exchange_values(sums_of_parts):
        for group, part, total in of_rank:
            sums.setdefault((group, part), set()).add(total)
    chosen = {key for key, different in sums.items() if len(different) > 1}
    return differences(
        ranks.exchange_values(
            lambda: [one for key, leaves in parts.items() if key in chosen for one in leaves]
        )
    )


def check_equal(ranks: Ranks, found: list[Difference], differing: str | None) -> None:
    """Refuses the keys under which ranks hold different data, or warns of them."""
    compared = ranks.compared
    refused, reported = [], []
    for one in found:
        # What only some saves find must not end a training in the middle.
        is_refused = one.kind == TENSOR or (one.kind == SAMPLED and not compared.has_compared)
        if differing == "refuse" or (differing is None and is_refused):
            refused.append(one)
        else:
            reported.append(one)
    if refused:
        raise Invalid(
            f"{_named(refused)}. A step stores one: give each rank a separate key, such as "
            'f"name.{rank}", make them equal, or save with SaveTuning(differing="warn")',
            key=refused[0].fqn,
        )
    texts = []
    for kinds, advice in _ADVICE:
        chosen = [one for one in reported if one.kind in kinds]
        if chosen and not compared.has_warned_of & kinds:
            compared.has_warned_of |= kinds
            texts.append(f"{_named(chosen)}. A step stores one: {advice}")
    if texts:
        ranks.warn_of_contents("; ".join(texts))


_ADVICE = (
    ({TENSOR, SAMPLED}, 'give each rank a separate key, such as f"name.{rank}"'),
    ({BUFFER}, "make the buffers of the modules equal before a save if that matters"),
    ({VALUE}, 'give each rank a separate key, such as f"name.{rank}"'),
)
"""Kinds with one separate warning, and what it recommends."""


def _named(found: list[Difference]) -> str:
    texts = [
        f"'{one.fqn}': {named_ranks(one.others)} hold{'s' if len(one.others) == 1 else ''} "
        f"{'another value' if one.kind == VALUE else 'other data'} than rank {one.lowest}"
        for one in found[:_NAMED_KEYS]
    ]
    more = len(found) - len(texts)
    if more:
        texts.append(f"and so do ranks under {more} other key{'s' if more > 1 else ''}")
    return "; ".join(texts)
