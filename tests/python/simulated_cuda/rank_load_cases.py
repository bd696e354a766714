"""Several ranks with CUDA tensors: saves and loads, over NCCL and without it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from device_memory import Memory, control, to_cuda, to_host
from rank_connections import nccl_is_used  # noqa: F401 (a fixture)
from rank_connections import SMALL, values
from thread_ranks import TIMEOUT, dtensor, mesh_of, on_ranks, part_of, sharded_tensor
from torch.distributed.tensor import Replicate, Shard

import cairn

pytestmark = pytest.mark.skipif(not control.NcclPath(), reason="no nccl.h: no simulated NCCL")


def load_cases(rank):
    grid = mesh_of(2, 2)
    full = {"plain": values(600, 1000), "grid": values(512, 700, seed=2), "boxes": values(8, 9)}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in full.items()}

    def state(wholes):
        return {
            "plain": to_cuda(wholes["plain"], rank),
            "grid": dtensor(wholes["grid"], grid, Replicate(), Shard(0)),
            "boxes": sharded_tensor(wholes["boxes"]),
            "number": 5,
        }

    return full, state(full), state(zeros), grid


def check_loaded(state, full, grid, rank):
    assert torch.equal(to_host(state["plain"]), full["plain"])
    part = part_of(full["grid"], grid, (Replicate(), Shard(0)))
    assert torch.equal(to_host(state["grid"]._local_tensor), part)
    rows = to_host(state["boxes"].local_shards()[0].tensor)
    assert torch.equal(rows, full["boxes"][2 * rank : 2 * rank + 2])


@pytest.mark.parametrize("mode", ["on", "off"])
def test_what_one_rank_reads_is_passed_on_from_device_to_device(path, monkeypatch, mode):
    monkeypatch.setenv("CAIRN_NCCL", mode)

    def body(rank):
        full, saved, target, grid = load_cases(rank)
        with cairn.open(path, mode="a", timeout=TIMEOUT) as store:
            store.save(1, saved)
            dist.barrier()
            control.ResetCounters()
            dist.barrier()
            report = store.load(target, read_once=True)
            dist.barrier()
            check_loaded(target, full, grid, rank)
            shared = full["plain"].nbytes + full["grid"].nbytes
            moved = control.BytesToHost(), control.BytesToDevice()
            if mode == "on":
                assert store.transport.startswith("NCCL")
                assert moved[0] < SMALL and moved[1] < shared * 1.1 + SMALL
            else:
                assert "CAIRN_NCCL=off" in store.transport
                assert moved[0] > full["plain"].nbytes
        return report.bytes_read, shared

    results = on_ranks(body, 4)
    assert sum(read for read, _ in results) < results[0][1] * 1.1 + 4 * SMALL


def test_shards_on_devices_are_saved_and_loaded_by_any_ranks(path):
    whole = values(96, 64)

    def save(rank):
        state = {
            "rows": dtensor(whole, mesh_of(4), Shard(0)),
            "grid": dtensor(whole, mesh_of(2, 2), Shard(1), Shard(0)),
            "boxes": sharded_tensor(whole),
        }
        with cairn.open(path, mode="a", timeout=TIMEOUT) as store:
            report = store.save(1, state)
            again = store.save_async(2, state).result()
            assert again.written_bytes == 0
        return report.logical_bytes

    def load(rank):
        zeros = torch.zeros_like(whole)
        mesh = mesh_of(2)
        for read_once in (False, True):
            state = {
                "rows": dtensor(zeros, mesh, Shard(1)),
                "grid": sharded_tensor(zeros),
                "boxes": dtensor(zeros, mesh, Replicate()),
            }
            with cairn.open(path, timeout=TIMEOUT) as store:
                store.load(state, read_once=read_once)
            part = part_of(whole, mesh, (Shard(1),))
            assert torch.equal(to_host(state["rows"]._local_tensor), part)
            rows = to_host(state["grid"].local_shards()[0].tensor)
            assert torch.equal(rows, whole[rank * 48 : rank * 48 + 48])
            assert torch.equal(to_host(state["boxes"]._local_tensor), whole)

    assert sum(on_ranks(save, 4)) == 3 * whole.nbytes
    on_ranks(load, 2)
    with cairn.open(path, alone=True) as store:
        read = store.read()
    assert all(torch.equal(read[name], whole) for name in ("rows", "grid", "boxes"))


@pytest.mark.parametrize(
    "function, calls",
    [
        (b"cudaPointerGetAttributes", range(9, 19, 3)),
        (b"cudaMemcpyAsync", range(6, 8)),
        (b"cudaEventRecord", range(33, 36)),
    ],
)
def test_a_fault_at_any_call_of_a_load_ends_it_on_all_ranks(path, function, calls):
    def body(rank):
        full, saved, target, grid = load_cases(rank)
        with cairn.open(path, mode="a", timeout=TIMEOUT) as store:
            store.save(1, saved)
        for nth in calls:
            store = cairn.open(path, timeout=TIMEOUT)
            store.load(target, read_once=True)  # connects
            dist.barrier()
            if rank == 0:
                control.FailCall(function, nth)
            dist.barrier()
            try:
                store.load(target, read_once=True)
                check_loaded(target, full, grid, rank)
            except cairn.Error as error:
                for late in ("deadline", "imed out", "timeout"):
                    assert late not in str(error), (function, nth, str(error))
            dist.barrier()
            if rank == 0:
                control.ClearFaults()
            store.abandon()
            dist.barrier()

    on_ranks(body, 4)


def test_what_ranks_hold_on_devices_is_compared(path):
    """Also tensors that share memory, and transposed ones."""

    def body(rank):
        def state(other):
            whole = values(300, 400)
            whole += other * rank
            memory = Memory.of(to_cuda(whole, rank))
            return {
                "transposed": memory.tensor(whole.dtype, (400, 300), (1, 400)),
                "shared": memory.tensor(whole.dtype, (400,), (1,), 299 * 400 * 4),
                "small": to_cuda(values(5), rank),
                "host": values(200),
            }

        with cairn.open(path, mode="a", timeout=TIMEOUT) as store:
            text = "'shared': rank 1 holds other data than rank 0; 'transposed': rank 1"
            with pytest.raises(cairn.Invalid, match=text):
                store.save(1, state(1))
            for step in (2, 3):
                store.save(step, state(0))

    on_ranks(body)
