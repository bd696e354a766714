"""Every way in which four ranks can hold a tensor: plain, as a DTensor, as a ShardedTensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from dtensors import sharded
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

Make = Callable[[torch.Tensor], Any]


def layouts() -> dict[str, Make]:
    """Functions, by name, that create an object of the layout from the full tensor. Only those for
    ShardedTensors communicate. Needs a group of four ranks."""
    return {"plain": torch.clone, **dict(_dtensors()), **dict(_sharded_tensors())}


def _dtensors() -> Iterator[tuple[str, Make]]:
    line = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    kinds = [Replicate(), Shard(0), Shard(1)]
    for kind in kinds:
        yield f"line {kind}", _on(line, (kind,))
    for pair in itertools.product(kinds, kinds):
        yield f"square {pair[0]}, {pair[1]}", _on(square, pair)
    # As fully_shard makes it of a tensor that tensor parallelism has sharded.
    yield "square strided", _on(square, (_StridedShard(0, split_factor=2), Shard(0)))


def _on(mesh: DeviceMesh, placements: tuple) -> Make:
    return lambda whole: sharded(whole, mesh, placements)


def _sharded_tensors() -> Iterator[tuple[str, Make]]:
    for dim in (0, 1):
        spec = ChunkShardingSpec(dim, [f"rank:{rank}/cpu" for rank in range(4)])
        yield f"chunks {dim}", _spread(lambda shape, spec=spec: spec)
    yield (
        "reversed chunks",
        _spread(lambda shape: ChunkShardingSpec(0, [f"rank:{r}/cpu" for r in (3, 1, 0, 2)])),
    )
    yield "grid", _spread(lambda shape: _grid(shape, (2, 2), (0, 1, 2, 3)))
    yield "many", _spread(lambda shape: _grid(shape, (3, 3), (2, 0, 1, 1, 3, 0, 2, 2, 1)))
    yield "few", _spread(lambda shape: _grid(shape, (2, 1), (3, 1)))


def _grid(shape: torch.Size, counts: tuple[int, int], owners: tuple[int, ...]):
    """Splits a tensor into uneven parts along the first two dimensions."""
    cuts = [[size * i // count for i in range(count + 1)] for size, count in zip(shape, counts)]
    boxes = itertools.product(*(itertools.pairwise(cut) for cut in cuts))
    shards = []
    for (rows, columns), owner in zip(boxes, owners):
        offsets = [rows[0], columns[0], *[0] * (len(shape) - 2)]
        sizes = [rows[1] - rows[0], columns[1] - columns[0], *shape[2:]]
        if 0 not in sizes:
            shards.append(ShardMetadata(offsets, sizes, f"rank:{owner}/cpu"))
    return EnumerableShardingSpec(shards)


def _spread(spec_of: Callable) -> Make:
    def make(whole: torch.Tensor) -> ShardedTensor:
        made = sharded_tensor.empty(spec_of(whole.shape), *whole.shape, dtype=whole.dtype)
        for offsets, part in parts(made):
            if part.numel() > 0:  # empty chunks may begin after the end
                part.copy_(_cut(whole, offsets, part.shape))
        return made

    return make


def parts(held: Any) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """The offset and memory of each part on this rank; for a DTensor, the offset is 0."""
    if isinstance(held, ShardedTensor):
        return [(tuple(s.metadata.shard_offsets), s.tensor) for s in held.local_shards()]
    local = held.to_local() if isinstance(held, DTensor) else held
    return [((0,) * held.dim(), local)]


def dcp_takes(held: Any) -> bool:
    """dcp's planner refuses ShardedTensors with an empty shard that begins after the end."""
    return not isinstance(held, ShardedTensor) or all(
        offset + length <= size
        for shard in held.metadata().shards_metadata
        for offset, length, size in zip(shard.shard_offsets, shard.shard_sizes, held.shape)
    )


def _cut(whole: torch.Tensor, offsets: tuple[int, ...], shape: torch.Size) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(offsets, shape)):
        whole = whole.narrow(dim, offset, size)
    return whole


def assert_same_parts(got: Any, want: Any, where: str) -> None:
    """Asserts that this rank holds the same parts."""
    assert type(got) is type(want), where
    for (got_at, got_part), (want_at, want_part) in zip(parts(got), parts(want), strict=True):
        assert got_at == want_at and torch.equal(got_part, want_part), (
            f"{where} on rank {dist.get_rank()}: {got_part} is not {want_part}"
        )
