"""Several ranks with CUDA tensors: state dicts that pass between them, over NCCL and without it."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from cairn_testing import interrupt_when_waiting
from device_memory import control, to_cuda, to_host
from rank_connections import nccl_is_used  # noqa: F401 (a fixture)
from rank_connections import SMALL, values
from thread_ranks import TIMEOUT, dtensor, mesh_of, on_ranks, part_of, sharded_tensor
from torch.distributed.tensor import Replicate, Shard

import cairn
from cairn import state_dict
from cairn._base import devices
from cairn._ranks.sharded import dtensor_like

pytestmark = pytest.mark.skipif(not control.NcclPath(), reason="no nccl.h: no simulated NCCL")


def test_shards_on_devices_are_gathered_from_device_to_device():
    large, small = values(512, 1000), values(7, 5, seed=2)
    half = values(300, 40, seed=3).to(torch.bfloat16)

    def body(rank):
        mesh, grid = mesh_of(4), mesh_of(2, 2)
        state = {
            "rows": dtensor(large, mesh, Shard(0)),
            "columns": dtensor(large, mesh, Shard(1)),
            "uneven": dtensor(small, mesh, Shard(0)),
            "grid": dtensor(half, grid, Replicate(), Shard(1)),
            "whole": dtensor(small, mesh, Replicate()),
            "boxes": sharded_tensor(large),
            "own": to_cuda(small, rank),
            "number": rank,
        }
        dist.barrier()
        control.ResetCounters()
        before = control.NcclBytes()
        whole = state_dict.gather_state_dict(state)
        dist.barrier()
        moved = control.NcclBytes() - before, control.BytesToHost(), control.BytesToDevice()
        assert whole["own"] is state["own"] and whole["number"] == rank
        for name, want in {
            "rows": large, "columns": large, "uneven": small, "grid": half, "whole": small,
            "boxes": large,
        }.items():  # fmt: skip
            assert type(whole[name]) is torch.Tensor
            assert whole[name].device == torch.device("cuda", rank), name
            assert torch.equal(to_host(whole[name]), want), name
        assert whole["whole"].data_ptr() != state["whole"]._local_tensor.data_ptr()
        return state_dict.transport(), moved

    for rank, (transport, moved) in enumerate(on_ranks(body, 4)):
        assert transport.startswith("NCCL 2.") and f"from device {rank}" in transport
        sent, to_host_bytes, to_device_bytes = moved
        assert sent > 3 * large.nbytes * 3 // 4
        assert to_host_bytes < SMALL and to_device_bytes < SMALL


def test_a_gathering_comes_after_what_the_current_streams_hold(streams):
    large = values(64, 1000)

    def body(rank):
        state = {"rows": dtensor(torch.zeros_like(large), mesh_of(2), Shard(0))}
        local = state["rows"]._local_tensor
        new = to_cuda(part_of(large, mesh_of(2), (Shard(0),)), rank)
        for _ in range(20):  # each with a different delay
            streams[rank].copy(local, new)
        whole = state_dict.gather_state_dict(state)
        assert torch.equal(to_host(whole["rows"]), large)

    on_ranks(body)


def test_a_full_state_is_broadcast_from_device_to_device():
    large, small = values(512, 1000), values(7, 5, seed=2)
    full = {"rows": large, "grid": small, "meta": large, "plain": large, "boxes": large, "n": 3}

    def body(rank):
        mesh, grid = mesh_of(4), mesh_of(2, 2)
        zeros = {name: torch.zeros_like(t) for name, t in full.items() if torch.is_tensor(t)}
        local = {
            "rows": dtensor(zeros["rows"], mesh, Shard(0)),
            "grid": dtensor(zeros["grid"], grid, Shard(1), Replicate()),
            "plain": 0,
            "boxes": sharded_tensor(zeros["boxes"]),
            "n": 0,
        }
        like = dtensor(zeros["meta"], mesh, Shard(1))
        meta = torch.empty(tuple(like._local_tensor.shape), device="meta")
        local["meta"] = dtensor_like(like, meta)
        kept = local["rows"]._local_tensor.data_ptr()
        on_device = {k: to_cuda(v, 0) if torch.is_tensor(v) else v for k, v in full.items()}
        dist.barrier()
        control.ResetCounters()
        device = torch.device("cuda", rank)
        state_dict.broadcast_state_dict(on_device if rank == 0 else {}, local, device)
        dist.barrier()
        assert control.BytesToHost() < SMALL and control.BytesToDevice() < SMALL
        assert local["rows"]._local_tensor.data_ptr() == kept
        for name, on, placements in (
            ("rows", mesh, (Shard(0),)),
            ("grid", grid, (Shard(1), Replicate())),
            ("meta", mesh, (Shard(1),)),
        ):
            assert local[name]._local_tensor.device == device
            part = part_of(full[name], on, placements)
            assert torch.equal(to_host(local[name]._local_tensor), part), name
        assert local["plain"].device == device and torch.equal(to_host(local["plain"]), large)
        shard = local["boxes"].local_shards()[0].tensor
        assert torch.equal(to_host(shard), large[rank * 128 : rank * 128 + 128])
        assert local["n"] == 3

    on_ranks(body, 4)


def test_what_fails_over_nccl_on_one_rank_ends_on_all():
    large = values(300, 500)

    def body(rank):
        state = {"rows": dtensor(large, mesh_of(3), Shard(0))}
        state_dict.gather_state_dict(state)
        dist.barrier()
        if rank == 1:
            control.NcclFailCall(b"ncclGroupEnd")
        dist.barrier()
        with pytest.raises(cairn.Unavailable) as raised:
            state_dict.gather_state_dict(state)
        assert "deadline" not in str(raised.value)
        # The next call reconnects.
        whole = state_dict.gather_state_dict(state)
        assert torch.equal(to_host(whole["rows"]), large)

    on_ranks(body, 3)


@pytest.mark.parametrize("own_device_is_busy", [False, True])
def test_an_interruption_ends_a_call_over_nccl_on_all_ranks(monkeypatch, own_device_is_busy):
    large = values(64, 1000)
    held = []

    late = threading.Event()
    real = devices.current_streams

    def current_streams(used):
        if dist.get_rank() == 1 and held and not late.is_set():
            late.wait(TIMEOUT)
        return real(used)

    monkeypatch.setattr(devices, "current_streams", current_streams)

    def body(rank):
        state = {"rows": dtensor(large, mesh_of(2), Shard(0))}
        state_dict.gather_state_dict(state)
        dist.barrier()
        if rank == 0:
            held.append(None)
            if own_device_is_busy:
                held[0] = control.BlockDefault(0)
        dist.barrier()
        with pytest.raises(KeyboardInterrupt if rank == 0 else cairn.Unavailable) as raised:
            if rank == 0:
                interrupt_when_waiting()
            state_dict.gather_state_dict(state)
        assert "deadline" not in str(raised.value)
        if rank == 0:
            late.set()  # it has ended without the other
        dist.barrier()
        if rank == 0 and held[0]:
            control.Unblock(held[0])
        dist.barrier()
        whole = state_dict.gather_state_dict(state)
        assert torch.equal(to_host(whole["rows"]), large)

    on_ranks(body)
