"""Tensors of known contents, and DTensors made from them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

SHAPES = {"uneven": (7, 5), "even": (8, 4), "short": (2, 3), "deep": (5, 3, 2)}


def whole(name: str, offset: int = 0) -> torch.Tensor:
    shape = SHAPES[name]
    count = torch.Size(shape).numel()
    return torch.arange(offset, offset + count, dtype=torch.float32).view(shape)


def sharded(tensor: torch.Tensor, mesh, placements) -> DTensor:
    """Like distribute_tensor, but also for strided shards, and without communication."""
    local = tensor
    for dim, placement in enumerate(placements):
        if not isinstance(placement, Replicate):
            pieces, _ = placement._split_tensor(local, mesh.size(dim), with_padding=False)
            local = pieces[mesh.get_coordinate()[dim]]
    return DTensor.from_local(
        local.clone(), mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def sharded_state(step: int) -> dict[str, Any]:
    """A state that differs in each step: rows that all ranks hold together, and the step."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"rows": sharded(whole("uneven", step), mesh, (Shard(0),)), "step": step}


def assert_shard(got: DTensor, want: torch.Tensor, mesh, placements) -> None:
    assert isinstance(got, DTensor) and got.shape == want.shape and got.placements == placements
    expected = sharded(want, mesh, placements)._local_tensor
    assert got._local_tensor.shape == expected.shape
    assert torch.equal(got._local_tensor, expected)
