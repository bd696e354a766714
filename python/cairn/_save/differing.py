"""What ranks hold under one key, but a step stores once: which keys differ, and what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from cairn._ranks.arrival import named_ranks
from cairn._ranks.ranks import Ranks
from cairn._save.flatten import FlatState
from cairn.errors import Invalid

VALUE, TENSOR, SAMPLED, BUFFER = "value", "tensor", "sampled", "buffer"
"""The kind of a key. The elements of a sampled tensor that ranks compare depend on the step."""

_COMPLETE_ELEMENTS = 1024  # of a tensor that is compared completely, as in Batch.take_samples
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_NAMED_KEYS = 10


class Difference(NamedTuple):
    """Ranks that hold something else than the lowest rank with the key."""

    fqn: str
    kind: str
    lowest: int
    others: list[int]


def elements_at(tensor: Any, runs: list[tuple[int, int]]) -> bytes:
    """Elements of a tensor in device memory: their first positions in row-major order, and their
    numbers."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return b""  # a storage that several tensors share is not compared
    flat = tensor.detach().reshape(-1)
    positions = torch.tensor([begin + i for begin, count in runs for i in range(count)])
    picked = flat[positions.to(tensor.device)].cpu()
    return picked.view(torch.uint8).numpy().tobytes()


def samples(flat: FlatState, buffers: set[str]) -> list[tuple[str, str, int]]:
    """(FQN, kind, digest) of what `Batch.take_samples` has compared. `buffers`: FQNs."""
    large = {
        fqn
        for fqn, _, shape, _ in flat.batch.layout()[1]
        if math.prod(shape) > _COMPLETE_ELEMENTS
    }

    def kind_of(fqn: str, is_tensor: bool) -> str:
        if not is_tensor:
            return VALUE
        if fqn in buffers or fqn.rsplit(".", 1)[-1] in _STATISTICS:
            return BUFFER
        return SAMPLED if fqn in large else TENSOR

    return [(fqn, kind_of(fqn, is_tensor), one) for fqn, is_tensor, one in flat.batch.samples()]


def differences(of_ranks: list[list[tuple[str, str, int]]]) -> list[Difference]:
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


def check_equal(
    ranks: Ranks, own: Callable[[], list[tuple[str, str, int]]], differing: str | None
) -> None:
    """Refuses the keys under which ranks hold different data, or warns of them. Collective."""
    found = differences(ranks.exchange_values(own))
    refused, reported = [], []
    for one in found:
        # What only some saves find must not end a training in the middle.
        is_refused = one.kind == TENSOR or (one.kind == SAMPLED and not ranks.has_compared)
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
        if chosen and not ranks.has_warned_of & kinds:
            ranks.has_warned_of |= kinds
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
