"""Several ranks that save and load together: every kind of sharded tensor, on any mesh."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from ranks import RanksFailed, run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import cairn

SHAPES = {"uneven": (7, 5), "even": (8, 4), "short": (2, 3), "deep": (5, 3, 2)}
ONE_DIM = [(Replicate(),), (Shard(0),), (Shard(1),)]
TWO_DIMS = list(itertools.product([Replicate(), Shard(0), Shard(1)], repeat=2)) + [
    (_StridedShard(0, split_factor=2), Shard(0))
]


def whole(name: str, offset: int = 0) -> torch.Tensor:
    shape = SHAPES[name]
    count = torch.Size(shape).numel()
    return torch.arange(offset, offset + count, dtype=torch.float32).view(shape)


def sharded(tensor: torch.Tensor, mesh, placements) -> DTensor:
    """As distribute_tensor, also for strided shards, and without talking."""
    local = tensor
    for dim, placement in enumerate(placements):
        if not isinstance(placement, Replicate):
            pieces, _ = placement._split_tensor(local, mesh.size(dim), with_padding=False)
            local = pieces[mesh.get_coordinate()[dim]]
    return DTensor.from_local(
        local.clone(), mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def assert_shard(got: DTensor, want: torch.Tensor, mesh, placements) -> None:
    assert isinstance(got, DTensor) and got.shape == want.shape and got.placements == placements
    expected = sharded(want, mesh, placements)._local_tensor
    assert got._local_tensor.shape == expected.shape
    assert torch.equal(got._local_tensor, expected)


def meshes_of(dims: int):
    if dims == 1:
        return init_device_mesh("cpu", (4,)), ONE_DIM
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), TWO_DIMS


def reshard_everything(rank, path, saved_dims, loaded_dims):
    saved_mesh, saved = meshes_of(saved_dims)
    loaded_mesh, loaded = meshes_of(loaded_dims)
    with cairn.open(path, mode="a") as store:
        assert (store.rank, store.world_size) == (rank, 4)
        state = {
            f"{name}/{i}": sharded(whole(name, i), saved_mesh, placements)
            for name in SHAPES
            for i, placements in enumerate(saved)
        }
        store.save(1, state)
        for placements in loaded:
            for read_once in (False, True):
                target = {
                    key: sharded(torch.full_like(whole(key.split("/")[0]), -1), loaded_mesh, placements)
                    for key in state
                }
                store.load(target, read_once=read_once)
                for key, got in target.items():
                    name, i = key.split("/")
                    assert_shard(got, whole(name, int(i)), loaded_mesh, placements)


@pytest.mark.parametrize("saved_dims", [1, 2])
@pytest.mark.parametrize("loaded_dims", [1, 2])
def test_every_placement_loads_as_every_other(path, saved_dims, loaded_dims):
    run_on_ranks(reshard_everything, path, saved_dims, loaded_dims)

    # And one process, later, sees whole tensors.
    with cairn.open(path) as store:
        assert store.world_size == 1
        for key, got in store.read(step=1).items():
            name, i = key.split("/")
            assert torch.equal(got, whole(name, int(i)))
