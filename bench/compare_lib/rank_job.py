"""One rank of a job that saves and loads with torch.distributed.checkpoint; run by rank_jobs.py.

    python rank_job.py SCALE RANK WORLD_SIZE RENDEZVOUS_FILE STORAGE VERB PATH

Creates its shards of the transformer, waits for the other ranks and for a line on standard input,
saves or loads, and prints its figures as one line of JSON. Rank 0's time is that of the job: it is
measured between two barriers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DeviceMesh, DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from compare_lib.meter import Meter  # noqa: E402
from compare_lib.states import SEED, fill, transformer_shapes  # noqa: E402


def _shards(scale: float, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    """Shards as FSDP2 creates them: rows over the ranks, scalars on every rank. Not filled."""
    found: dict[str, torch.Tensor] = {}
    for name, (shape, dtype) in transformer_shapes(scale).items():
        if not shape:
            found[name] = torch.zeros(shape, dtype=dtype)
            continue
        size, _ = compute_local_shape_and_global_offset(shape, mesh, [Shard(0)])
        stride = torch.empty(shape, device="meta").stride()
        local = torch.empty(size, dtype=dtype)
        found[name] = DTensor.from_local(
            local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
        )
    return found


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _filled(scale: float, mesh: DeviceMesh, rank: int) -> dict[str, torch.Tensor]:
    shards = _shards(scale, mesh)
    fill({name: _local(t) for name, t in shards.items() if t.dim() > 0}, SEED + rank)
    return shards


def _zeroed(scale: float, mesh: DeviceMesh) -> dict[str, torch.Tensor]:
    shards = _shards(scale, mesh)
    for tensor in shards.values():
        np.asarray(_local(tensor).view(-1).view(torch.uint8))[:] = 0  # touches every page
    return shards


def _writer(storage: str, path: str) -> dcp.StorageWriter:
    if storage == "dcp":
        return dcp.FileSystemWriter(path, sync_files=True)
    from cairn.dcp import CairnWriter

    return CairnWriter(path)


def _reader(storage: str, path: str) -> dcp.StorageReader:
    if storage == "dcp":
        return dcp.FileSystemReader(path)
    from cairn.dcp import CairnReader

    return CairnReader(path)


def _check(loaded: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        if not torch.equal(
            _local(loaded[name]).view(-1).view(torch.uint8),
            _local(tensor).view(-1).view(torch.uint8),
        ):
            raise AssertionError(f"loaded something else than was saved: {name}")


def main() -> None:
    scale, rank, world_size = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rendezvous, storage, verb, path = sys.argv[4:]
    torch.set_num_threads(1)
    store = dist.FileStore(rendezvous, world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    mesh = DeviceMesh("cpu", list(range(world_size)))
    state = _filled(scale, mesh, rank) if verb == "save" else _zeroed(scale, mesh)
    work = {
        "save": lambda: dcp.save(state, storage_writer=_writer(storage, path)),
        "load": lambda: dcp.load(state, storage_reader=_reader(storage, path)),
    }[verb]
    _writer(storage, path)  # imports are not timed
    dist.barrier()
    print("ready", flush=True)
    sys.stdin.readline()
    dist.barrier()
    meter = Meter()
    work()
    dist.barrier()
    spent = meter.stop()
    if verb == "load":
        _check(state, _filled(scale, mesh, rank))
    print(json.dumps(asdict(spent)), flush=True)
    dist.barrier()  # no rank exits while another one may still communicate with it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
