"""Placements compared with torch's: the same local shape and elements."""

from __future__ import annotations

import random

import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

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


def request(plan, number, local, shape, mesh, placements, rank) -> None:
    """Requests the part of a rank of the mesh. This process is rank 0 of the store."""
    ranks = list(range(torch.Size(mesh).numel()))
    ranks[0], ranks[rank] = rank, 0
    sharding = tuple(shape), _cairn.Mesh(tuple(mesh), ranks), placements
    plan.request_shard(number, local.shape, local.stride(), local.data_ptr(), -1, sharding)


def test_shards_are_torchs(store):
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    cases = [random_case(rng) for _ in range(CASES)]
    wholes = [torch.arange(torch.Size(shape).numel()).view(shape) for shape, _, _ in cases]
    store.save(1, dict(zip(map(str, range(CASES)), wholes)))
    contents = store.opened.native.contents(1, [])
    plan = _cairn.LoadPlan(contents, {}, [])
    loaded = []
    for number, (shape, mesh, placements) in enumerate(cases):
        rank = rng.randrange(torch.Size(mesh).numel())
        coordinate = coordinates(mesh)[rank]
        sizes, _ = _compute_local_shape_and_global_offset(
            shape, mesh, coordinate, [to_torch(placement) for placement in placements]
        )
        local = torch.full(sizes, -1)
        request(plan, number, local, shape, mesh, placements, rank)
        loaded.append((local, coordinate))

    store.opened.native.load(contents.info, plan.requests, [])

    for number, (local, coordinate) in enumerate(loaded):
        shape, mesh, placements = cases[number]
        expected = local_tensor(wholes[number], mesh, placements, coordinate)
        case = f"seed {seed}, case {number}: {shape} on {mesh} by {placements}, at {coordinate}"
        assert torch.equal(local, expected), case
