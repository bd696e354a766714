"""Several ranks with CUDA tensors: what passes between them, over NCCL and without it."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from device_memory import control, to_cuda, to_host
from thread_ranks import TIMEOUT, dtensor, mesh_of, on_ranks, part_of, sharded_tensor
from torch.distributed.tensor import Replicate, Shard

import cairn
from cairn import state_dict
from cairn._base import devices
from cairn._ranks import nccl
from cairn._ranks.sharded import dtensor_like
from cairn.state_dict import _collectives as state_dict_collectives

KIB = 1 << 10
SMALL = 64 * KIB
"""Bytes that cross the bus for control messages alone."""

pytestmark = pytest.mark.skipif(not control.NcclPath(), reason="no nccl.h: no simulated NCCL")


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(state_dict_collectives, "TIMEOUT", TIMEOUT)
    monkeypatch.setenv("CAIRN_NCCL", "on")


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert control.NcclCommunicators() == 0
    gc.collect()  # later it might wait for a stream that a test keeps busy


def with_connections(body):
    """``body(rank)``, after which all ranks let their connections go."""

    def run(rank):
        try:
            return body(rank)
        finally:
            group = dist.group.WORLD
            ranks = state_dict_collectives._ranks_of_group.pop(group, None)
            if ranks is not None:
                ranks.leave()

    return run


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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

    for rank, (transport, moved) in enumerate(on_ranks(with_connections(body), 4)):
        assert transport.startswith("NCCL 2.") and f"from device {rank}" in transport
        sent, to_host_bytes, to_device_bytes = moved
        assert sent > 3 * large.nbytes * 3 // 4
        assert to_host_bytes < SMALL and to_device_bytes < SMALL


def test_gathered_states_may_be_for_some_ranks_and_in_host_memory():
    large = values(300, 500)

    def body(rank):
        state = {"rows": dtensor(large, mesh_of(3), Shard(0)), "n": 1}
        whole = state_dict.gather_state_dict(state, cpu_offload=True, ranks_only=(1,))
        assert bool(whole) == (rank == 1)
        if rank == 1:
            assert whole["rows"].device.type == "cpu" and torch.equal(whole["rows"], large)

    on_ranks(with_connections(body), 3)


def test_a_gathering_comes_after_what_the_current_streams_hold(streams):
    large = values(64, 1000)

    def body(rank):
        state = {"rows": dtensor(torch.zeros_like(large), mesh_of(2), Shard(0))}
        local = state["rows"]._local_tensor
        new = to_cuda(part_of(large, mesh_of(2), (Shard(0),)), rank)
        for _ in range(20):  # each with a delay of its own
            streams[rank].copy(local, new)
        whole = state_dict.gather_state_dict(state)
        assert torch.equal(to_host(whole["rows"]), large)

    on_ranks(with_connections(body))


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

    on_ranks(with_connections(body), 4)


def test_a_full_state_on_a_device_is_distributed_there():
    large = values(300, 40)

    def body(rank):
        mesh = mesh_of(2)
        local = {"rows": dtensor(torch.zeros_like(large), mesh, Shard(0))}
        full = {"rows": to_cuda(large, rank), "x": "text"}
        control.ResetCounters()
        state_dict.distribute_state_dict(full, local, torch.device("cuda", rank))
        assert local["x"] == "text" and local["rows"]._local_tensor.device.index == rank
        part = part_of(large, mesh, (Shard(0),))
        assert torch.equal(to_host(local["rows"]._local_tensor), part)
        assert control.BytesToHost() == 0

    on_ranks(with_connections(body))


def lacking_on(rank, monkeypatch):
    real = nccl.objection

    def objection(of_group):
        if dist.get_rank() == rank:
            return nccl.Objection("no NCCL: it is not installed", False)
        return real(of_group)

    monkeypatch.setattr(nccl, "objection", objection)


def choose_as_for_nccl(monkeypatch):
    """From here on ranks choose by themselves, as where torch has NCCL for CUDA tensors."""
    monkeypatch.setenv("CAIRN_NCCL", "auto")
    monkeypatch.setattr(nccl, "objection_of_group", lambda group: None)


def test_one_rank_without_nccl_means_none_uses_it(monkeypatch):
    choose_as_for_nccl(monkeypatch)
    lacking_on(1, monkeypatch)
    large = values(300, 500)

    def body(rank):
        state = {"rows": dtensor(large, mesh_of(3), Shard(0))}
        for _ in range(2):
            whole = state_dict.gather_state_dict(state)
            assert torch.equal(to_host(whole["rows"]), large)
        return state_dict.transport()

    before = control.NcclBytes()
    with pytest.warns(RuntimeWarning, match="rank 1: no NCCL: it is not installed") as warned:
        told = on_ranks(with_connections(body), 3)
    assert len([one for one in warned if one.category is RuntimeWarning]) == 1
    assert set(told) == {"host memory: rank 1: no NCCL: it is not installed"}
    assert control.NcclBytes() == before and control.BytesToHost() >= large.nbytes


def test_nccl_that_is_asked_for_and_lacking_is_an_error_on_all_ranks(monkeypatch):
    lacking_on(1, monkeypatch)

    def body(rank):
        state = {"rows": dtensor(values(8, 4), mesh_of(2), Shard(0))}
        for _ in range(2):
            with pytest.raises(cairn.Invalid, match="CAIRN_NCCL=on.*rank 1: no NCCL"):
                state_dict.gather_state_dict(state)

    on_ranks(with_connections(body))


@pytest.mark.parametrize("mode", ["OFF", "off", "auto"])
def test_groups_and_jobs_without_nccl_are_left_without_a_warning(monkeypatch, mode):
    monkeypatch.setenv("CAIRN_NCCL", mode)
    large = values(30, 50)

    def body(rank):
        whole = state_dict.gather_state_dict({"rows": dtensor(large, mesh_of(2), Shard(0))})
        assert torch.equal(to_host(whole["rows"]), large)
        return state_dict.transport()

    before = control.NcclBytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        told = on_ranks(with_connections(body))
    why = "CAIRN_NCCL=off" if mode != "auto" else "torch uses threaded for the group's CUDA tensors"
    assert all(why in one for one in told) and control.NcclBytes() == before


def test_a_mode_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("CAIRN_NCCL", "yes")

    def body(rank):
        with pytest.raises(cairn.Invalid, match="CAIRN_NCCL=yes: auto, on, off"):
            state_dict.gather_state_dict({"rows": dtensor(values(8), mesh_of(2), Shard(0))})

    on_ranks(with_connections(body))


def test_two_ranks_on_one_device_go_without_nccl(monkeypatch):
    choose_as_for_nccl(monkeypatch)
    large = values(30, 50)

    def body(rank):
        local = to_cuda(part_of(large, mesh_of(2), (Shard(0),)), 0)
        state = {"rows": dtensor_like(dtensor(large, mesh_of(2), Shard(0)), local)}
        for _ in range(2):
            whole = state_dict.gather_state_dict(state)
            assert torch.equal(to_host(whole["rows"]), large)
        return state_dict.transport()

    with pytest.warns(RuntimeWarning, match="invalid usage"):
        told = on_ranks(with_connections(body))
    assert all(one.startswith("host memory: ") for one in told)


def test_a_rank_without_tensors_on_devices_connects_its_own(monkeypatch):
    large = values(30, 50)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # nobody has set it
    bound = {1: 1}
    monkeypatch.setattr(nccl, "bound_device", lambda group: bound.get(dist.get_rank()))

    def body(rank):
        # Rank 2 is told by the call, rank 1 by the group.
        local = {"rows": to_cuda(large, 0) if rank == 0 else None}
        full = {"rows": to_cuda(large, 0)} if rank == 0 else {}
        wanted = torch.device("cuda", rank) if rank == 2 else torch.device("cpu")
        state_dict.broadcast_state_dict(full, local, wanted)
        return state_dict.transport()

    told = on_ranks(with_connections(body), 3)
    assert all(one.startswith("NCCL") for one in told)
    assert [one[-1] for one in told] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "named, devices, bound, wanted, current, connected",
    [
        ("its tensors'", [3], 1, "cuda:2", 0, 3),
        ("the group's", [], 1, "cuda:2", 0, 1),
        ("the call's", [], None, "cuda:2", 0, 2),
        ("no number", [], None, "cuda", 3, 3),
        ("host memory", [], None, "cpu", 3, 3),
        ("several, one the group's", [0, 1], 1, "cuda:0", 0, 1),
        ("several, none likely", [2, 3], 1, None, 0, 2),
    ],
)
def test_the_device_that_a_rank_connects(
    monkeypatch, named, devices, bound, wanted, current, connected
):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    assert nccl.device_for(devices, bound, wanted) == connected


def test_a_torch_that_has_no_current_device_goes_without_nccl(monkeypatch):
    choose_as_for_nccl(monkeypatch)

    def fail():
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "current_device", fail)
    large = values(30, 50)

    def body(rank):
        local = {"rows": to_cuda(large, 0) if rank == 0 else None}
        full = {"rows": to_cuda(large, 0)} if rank == 0 else {}
        state_dict.broadcast_state_dict(full, local, torch.device("cpu"))
        assert rank > 0 or torch.equal(local["rows"], large)
        return state_dict.transport()

    with pytest.warns(RuntimeWarning, match="rank 1: .*not compiled with CUDA"):
        told = on_ranks(with_connections(body))
    assert all("rank 1" in one for one in told)


def test_a_warning_that_is_an_error_does_not_part_the_ranks(monkeypatch):
    choose_as_for_nccl(monkeypatch)
    lacking_on(1, monkeypatch)
    large = values(30, 50)

    def body(rank):
        state = {"rows": dtensor(large, mesh_of(2), Shard(0))}
        if rank == 0:
            with pytest.raises(RuntimeWarning, match="no NCCL") as raised:
                state_dict.gather_state_dict(state)
            assert raised.traceback[-2].path.name == "_collectives.py"
        else:
            state_dict.gather_state_dict(state)
        connected = state_dict_collectives._ranks_of_group[dist.group.WORLD]
        whole = state_dict.gather_state_dict(state)
        assert torch.equal(to_host(whole["rows"]), large)
        assert state_dict_collectives._ranks_of_group[dist.group.WORLD] is connected

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        on_ranks(with_connections(body))


def test_the_warning_names_the_line_of_the_caller(monkeypatch):
    choose_as_for_nccl(monkeypatch)
    lacking_on(1, monkeypatch)

    def body(rank):
        state_dict.gather_state_dict({"rows": dtensor(values(8), mesh_of(2), Shard(0))})

    with pytest.warns(RuntimeWarning, match="no NCCL") as warned:
        on_ranks(with_connections(body))
    assert {one.filename for one in warned if one.category is RuntimeWarning} == {__file__}


@pytest.mark.parametrize("mode", ["1", "OFF"])
def test_calls_in_host_memory_alone_do_not_ask_for_nccl(monkeypatch, mode):
    monkeypatch.setenv("CAIRN_NCCL", mode)
    asked = []
    monkeypatch.setattr(nccl, "objection", lambda of_group: asked.append(1))

    def body(rank):
        full, local = {"a": values(30)}, {"a": torch.zeros(30)}
        state_dict.broadcast_state_dict(full, local, torch.device("cpu"))
        assert torch.equal(local["a"], full["a"])

    on_ranks(with_connections(body))
    assert not asked


def test_a_peer_that_dies_while_nccl_connects_is_unavailable():
    def body(rank):
        state = {"rows": dtensor(values(8, 4), mesh_of(2), Shard(0))}
        if rank == 1:
            ranks = state_dict_collectives.ranks_of(dist.group.WORLD, TIMEOUT)
            state_dict_collectives._ranks_of_group[dist.group.WORLD] = ranks
            ranks._connect_nccl = lambda device: (ranks.leave(), ranks.exchange(lambda: b""))
        with pytest.raises(cairn.Unavailable if rank == 0 else cairn.Error):
            state_dict.gather_state_dict(state)

    on_ranks(with_connections(body))


@pytest.mark.parametrize(
    "backend, why",
    [
        ("gloo", "torch uses gloo for"),
        ("nccl", None),
        ("cpu:gloo,cuda:nccl", None),
        ("cpu:gloo", "torch uses nothing for"),
    ],
)
def test_what_torch_sends_cuda_tensors_over(monkeypatch, backend, why):
    config = str(dist.BackendConfig(dist.Backend(backend)))
    monkeypatch.setattr(dist, "get_backend_config", lambda group: config)
    found = nccl.objection_of_group(None)
    assert found is None if why is None else found.startswith(why)


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
        # The next call connects anew.
        whole = state_dict.gather_state_dict(state)
        assert torch.equal(to_host(whole["rows"]), large)

    on_ranks(with_connections(body), 3)


@pytest.mark.parametrize("own_device_is_busy", [False, True])
def test_an_interruption_ends_a_call_over_nccl_on_all_ranks(monkeypatch, own_device_is_busy):
    large = values(64, 1000)
    held = []

    def interrupt():
        time.sleep(0.5)  # earlier is as good: the call waits for the other rank
        os.kill(os.getpid(), signal.SIGINT)

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
            threading.Thread(target=interrupt).start()
        dist.barrier()
        with pytest.raises(KeyboardInterrupt if rank == 0 else cairn.Unavailable) as raised:
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

    on_ranks(with_connections(body))


def test_a_child_of_fork_cannot_use_the_ranks_of_its_parent():
    def body(rank):
        state_dict.gather_state_dict({"rows": dtensor(values(8), mesh_of(2), Shard(0))})
        communicator = state_dict_collectives._ranks_of_group[dist.group.WORLD].communicator
        dist.barrier()
        if rank == 0:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    communicator.connect_devices(0, 1.0)
                except cairn.Invalid:
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
        dist.barrier()

    on_ranks(with_connections(body))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "store"


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
def test_what_one_rank_reads_is_passed_on_from_device_to_device(folder, monkeypatch, mode):
    monkeypatch.setenv("CAIRN_NCCL", mode)

    def body(rank):
        full, saved, target, grid = load_cases(rank)
        with cairn.open(folder, mode="a", timeout=TIMEOUT) as store:
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


def test_shards_on_devices_are_saved_and_loaded_by_any_ranks(folder):
    whole = values(96, 64)

    def save(rank):
        state = {
            "rows": dtensor(whole, mesh_of(4), Shard(0)),
            "grid": dtensor(whole, mesh_of(2, 2), Shard(1), Shard(0)),
            "boxes": sharded_tensor(whole),
        }
        with cairn.open(folder, mode="a", timeout=TIMEOUT) as store:
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
            with cairn.open(folder, timeout=TIMEOUT) as store:
                store.load(state, read_once=read_once)
            part = part_of(whole, mesh, (Shard(1),))
            assert torch.equal(to_host(state["rows"]._local_tensor), part)
            rows = to_host(state["grid"].local_shards()[0].tensor)
            assert torch.equal(rows, whole[rank * 48 : rank * 48 + 48])
            assert torch.equal(to_host(state["boxes"]._local_tensor), whole)

    assert sum(on_ranks(save, 4)) == 3 * whole.nbytes
    on_ranks(load, 2)
    with cairn.open(folder, alone=True) as store:
        read = store.read()
    assert all(torch.equal(read[name], whole) for name in ("rows", "grid", "boxes"))


def test_meta_tensors_get_device_memory_that_is_filled_over_nccl(folder):
    whole = values(96, 64)

    def body(rank):
        mesh = mesh_of(2)
        with cairn.open(folder, mode="a", timeout=TIMEOUT) as store:
            store.save(1, {"t": dtensor(whole, mesh, Shard(0)), "p": to_cuda(whole, rank)})
            like = dtensor(whole, mesh, Replicate())
            meta = torch.empty(tuple(whole.shape), device="meta")
            state = {"t": dtensor_like(like, meta), "p": torch.empty_like(meta)}
            store.load(state, device=f"cuda:{rank}", read_once=True)
            assert store.transport.startswith("NCCL")
        assert state["p"].device.index == state["t"]._local_tensor.device.index == rank
        assert torch.equal(to_host(state["p"]), whole)
        assert torch.equal(to_host(state["t"]._local_tensor), whole)

    on_ranks(body)


def test_a_load_that_fails_over_nccl_on_one_rank_ends_on_all(folder):
    def body(rank):
        full, saved, target, grid = load_cases(rank)
        with cairn.open(folder, mode="a", timeout=TIMEOUT) as store:
            store.save(1, saved)
        with cairn.open(folder, timeout=TIMEOUT) as store:
            store.load(target, read_once=True)
            dist.barrier()
            if rank == 2:
                control.NcclFailCall(b"ncclGroupEnd")
            dist.barrier()
            with pytest.raises(cairn.Unavailable) as raised:
                store.load(target, read_once=True)
            assert "deadline" not in str(raised.value)
            store._abandon()
        with cairn.open(folder, timeout=TIMEOUT) as store:
            store.load(target, read_once=True)
            check_loaded(target, full, grid, rank)

    on_ranks(body, 4)


SHORT = 4.0
"""Seconds after which ranks that wait for each other give up."""


@pytest.mark.parametrize(
    "function, calls",
    [
        (b"cudaPointerGetAttributes", range(9, 19, 3)),
        (b"cudaMemcpyAsync", range(6, 8)),
        (b"cudaEventRecord", range(33, 36)),
    ],
)
def test_a_fault_at_any_call_of_a_load_ends_it_on_all_ranks(folder, function, calls):
    def body(rank):
        full, saved, target, grid = load_cases(rank)
        with cairn.open(folder, mode="a", timeout=TIMEOUT) as store:
            store.save(1, saved)
        for nth in calls:
            store = cairn.open(folder, timeout=SHORT)
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
            store._abandon()
            dist.barrier()

    on_ranks(body, 4)
