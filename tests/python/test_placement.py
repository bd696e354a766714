"""Placements compared with torch's: the same local shape, offset and elements."""

from __future__ import annotations

import random

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

import cairn
from cairn import _cairn

CASES = 3000
KINDS = {"replicate": 0, "shard": 1, "strided": 2}


def random_case(rng: random.Random):
    shape = [rng.choice([0, 1, 2, 3, 5, 8, 12, 17]) for _ in range(rng.randint(1, 3))]
    mesh = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
    placements = []
    for _ in mesh:
        kind = rng.choice(list(KINDS))
        placements.append((KINDS[kind], rng.randrange(len(shape)), rng.randint(1, 4)))
    return shape, mesh, placements


def to_torch(placement):
    kind, dim, split_factor = placement
    if kind == KINDS["replicate"]:
        return Replicate()
    return Shard(dim) if kind == KINDS["shard"] else _StridedShard(dim, split_factor=split_factor)


def coordinates(mesh):
    """The coordinate of each rank, with the last dimension varying fastest."""
    return [c.tolist() for c in torch.cartesian_prod(*map(torch.arange, mesh)).view(-1, len(mesh))]


def local_tensor(whole, mesh, placements, coordinate):
    """The part that torch's own splitting gives to a rank."""
    for size, placement, place in zip(mesh, map(to_torch, placements), coordinate):
        if not isinstance(placement, Replicate):
            pieces, _ = placement._split_tensor(whole, size, with_padding=False)
            whole = pieces[place]
    return whole


def pieced_together(whole, sizes, pieces):
    local = torch.full(sizes, -1, dtype=whole.dtype)
    for offsets, lengths, at in pieces:
        source = whole[tuple(slice(o, o + n) for o, n in zip(offsets, lengths))]
        local[tuple(slice(o, o + n) for o, n in zip(at, lengths))] = source
    return local


def test_shards_are_torchs():
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    for number in range(CASES):
        shape, mesh, placements = random_case(rng)
        rank = rng.randrange(torch.Size(mesh).numel())
        coordinate = coordinates(mesh)[rank]
        case = f"seed {seed}, case {number}: {shape} on {mesh} by {placements}, rank {rank}"
        sizes, pieces = _cairn.shard_of(shape, mesh, placements, rank)
        expected, first = _compute_local_shape_and_global_offset(
            shape, mesh, coordinate, [to_torch(placement) for placement in placements]
        )
        assert sizes == expected, case
        assert not pieces or pieces[0][0] == first, case
        whole = torch.arange(torch.Size(shape).numel()).view(shape)
        local = local_tensor(whole, mesh, placements, coordinate)
        assert torch.equal(pieced_together(whole, sizes, pieces), local), case


def test_what_does_not_fit_is_refused():
    with pytest.raises(cairn.Invalid, match="divides dimension 2"):
        _cairn.shard_of([4, 4], [2], [(KINDS["shard"], 2, 1)], 0)
