"""Ranks that are threads of this process, each with its own torch process groups, as the simulated
NCCL requires. torch's "threaded" backend moves host memory only; Cairn connects over TCP."""

from __future__ import annotations

import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import simulated_machine
import torch
import torch.distributed as dist
from device_memory import to_cuda
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed import multi_threaded_pg

import cairn.state_dict

TIMEOUT = 100.0
"""Seconds in which ranks that do not hang make a call, on a machine of any speed."""


def on_ranks(body: Callable[[int], Any], world_size: int = 2) -> list[Any]:
    """Returns what ``body(rank)`` returns on each rank, whose current device has the number of the
    rank and which closes its connections afterwards. Rank 0 is the calling thread, which receives
    signals. Raises AssertionError with the errors of all ranks."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    multi_threaded_pg._install_threaded_pg()
    store = dist.HashStore()
    results: list[Any] = [None] * world_size
    raised: list[str] = []

    def run(rank: int) -> None:
        simulated_machine.current.device = rank
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world_size, store=store)
            try:
                results[rank] = body(rank)
            finally:
                if ranks := cairn.state_dict._ranks_of_group.pop(dist.group.WORLD, None):
                    ranks.leave(RuntimeError("the test has ended"))
        except BaseException as error:
            raised.append(f"--- rank {rank}\n{traceback.format_exc()}")
            # The other ranks may wait for this one in a collective, which has no deadline.
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
        finally:
            simulated_machine.current.device = 0
            if dist.is_initialized():
                dist.destroy_process_group()

    others = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(1, world_size)
    ]
    try:
        for thread in others:
            thread.start()
        run(0)
        for thread in others:
            thread.join(2 * TIMEOUT)
            assert not thread.is_alive(), "a rank hangs\n" + "\n".join(raised)
    finally:
        multi_threaded_pg.ProcessLocalGroup.reset()
        multi_threaded_pg._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
    assert not raised, "\n".join(raised)
    return results


def mesh_of(*sizes: int) -> DeviceMesh:
    """A mesh of the first ranks, without torch's communicators for it."""
    ranks = torch.arange(torch.Size(sizes).numel()).view(sizes)
    return DeviceMesh("cuda", ranks, _init_backend=False, _rank=dist.get_rank())


def part_of(whole: torch.Tensor, mesh: DeviceMesh, placements: tuple) -> torch.Tensor:
    """This rank's part, in host memory."""
    part = whole
    for placement, size, place in zip(placements, mesh.mesh.shape, mesh.get_coordinate()):
        if placement.is_shard():
            part = placement._split_tensor(part, size, with_padding=False)[0][place]
    return part.clone(memory_format=torch.contiguous_format)


def dtensor(whole: torch.Tensor, mesh: DeviceMesh, *placements: Any) -> DTensor:
    """A DTensor on this rank's device with the values of ``whole``."""
    local = to_cuda(part_of(whole, mesh, placements), dist.get_rank())
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def sharded_tensor(whole: torch.Tensor) -> Any:
    """A ShardedTensor with one block of rows per rank, on the rank's device."""
    from torch.distributed._shard.metadata import ShardMetadata
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
    from torch.distributed._shard.sharded_tensor.metadata import (
        ShardedTensorMetadata,
        TensorProperties,
    )

    rank, size = dist.get_rank(), dist.get_world_size()
    rows = whole.shape[0] // size
    parts = [
        ShardMetadata(
            [i * rows, *[0] * (whole.dim() - 1)], [rows, *whole.shape[1:]], f"rank:{i}/cuda:{i}"
        )
        for i in range(size)
    ]
    local = to_cuda(whole[rank * rows : (rank + 1) * rows].clone(), rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            [Shard(local, parts[rank])],
            ShardedTensorMetadata(parts, whole.size(), TensorProperties(dtype=whole.dtype)),
        )
