"""Several ranks with CUDA tensors: whether they use NCCL, and what they report."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from device_memory import control, to_cuda, to_host
from rank_connections import nccl_is_used  # noqa: F401 (a fixture)
from rank_connections import values
from thread_ranks import dtensor, mesh_of, on_ranks, part_of
from torch.distributed.tensor import Shard

import cairn
from cairn import state_dict
from cairn._base import devices  # noqa: F401  (defines the backend)
from cairn._ranks import nccl
from cairn._ranks.sharded import dtensor_like

pytestmark = pytest.mark.skipif(not control.NcclPath(), reason="no nccl.h: no simulated NCCL")


def lacking_on(rank, monkeypatch):
    real = nccl.objection

    def objection(of_group):
        if dist.get_rank() == rank:
            return nccl.Objection("no NCCL: it is not installed", False)
        return real(of_group)

    monkeypatch.setattr(nccl, "objection", objection)


def choose_as_for_nccl(monkeypatch):
    """Makes the ranks choose by themselves, as if torch used NCCL for CUDA tensors."""
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
        results = on_ranks(body, 3)
    assert len([one for one in warned if one.category is RuntimeWarning]) == 1
    assert set(results) == {"host memory: rank 1: no NCCL: it is not installed"}
    assert control.NcclBytes() == before and control.BytesToHost() >= large.nbytes


def test_nccl_that_is_asked_for_and_lacking_is_an_error_on_all_ranks(monkeypatch):
    lacking_on(1, monkeypatch)

    def body(rank):
        state = {"rows": dtensor(values(8, 4), mesh_of(2), Shard(0))}
        for _ in range(2):
            with pytest.raises(cairn.Invalid, match="CAIRN_NCCL=on.*rank 1: no NCCL"):
                state_dict.gather_state_dict(state)

    on_ranks(body)


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
        results = on_ranks(body)
    why = "CAIRN_NCCL=off" if mode != "auto" else "torch uses threaded for the group's CUDA tensors"
    assert all(why in one for one in results) and control.NcclBytes() == before


def test_a_mode_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("CAIRN_NCCL", "yes")

    def body(rank):
        with pytest.raises(cairn.Invalid, match="CAIRN_NCCL=yes: use one of auto, on, off"):
            state_dict.gather_state_dict({"rows": dtensor(values(8), mesh_of(2), Shard(0))})

    on_ranks(body)


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
        results = on_ranks(body)
    assert all(one.startswith("host memory: ") for one in results)


def test_a_rank_without_tensors_on_devices_connects_its_own(monkeypatch):
    large = values(30, 50)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)  # as if it had not been set
    bound = {1: 1}
    monkeypatch.setattr(nccl, "bound_device", lambda group: bound.get(dist.get_rank()))

    def body(rank):
        # Rank 2 takes its device from the call, rank 1 from the group.
        local = {"rows": to_cuda(large, 0) if rank == 0 else None}
        full = {"rows": to_cuda(large, 0)} if rank == 0 else {}
        wanted = torch.device("cuda", rank) if rank == 2 else torch.device("cpu")
        state_dict.broadcast_state_dict(full, local, wanted)
        return state_dict.transport()

    results = on_ranks(body, 3)
    assert all(one.startswith("NCCL") for one in results)
    assert [one[-1] for one in results] == ["0", "1", "2"]


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
        results = on_ranks(body)
    assert all("rank 1" in one for one in results)


def test_a_warning_that_is_an_error_does_not_part_the_ranks(monkeypatch):
    choose_as_for_nccl(monkeypatch)
    lacking_on(1, monkeypatch)
    large = values(30, 50)

    def body(rank):
        state = {"rows": dtensor(large, mesh_of(2), Shard(0))}
        if rank == 0:
            with pytest.raises(RuntimeWarning, match="no NCCL") as raised:
                state_dict.gather_state_dict(state)
            assert raised.traceback[-2].path.name == "state_dict.py"
        else:
            state_dict.gather_state_dict(state)
        connected = state_dict._ranks_of_group[dist.group.WORLD]
        whole = state_dict.gather_state_dict(state)
        assert torch.equal(to_host(whole["rows"]), large)
        assert state_dict._ranks_of_group[dist.group.WORLD] is connected

    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        on_ranks(body)


@pytest.mark.parametrize("mode", ["1", "OFF"])
def test_calls_in_host_memory_alone_do_not_ask_for_nccl(monkeypatch, mode):
    monkeypatch.setenv("CAIRN_NCCL", mode)
    asked = []
    monkeypatch.setattr(nccl, "objection", lambda of_group: asked.append(1))

    def body(rank):
        full, local = {"a": values(30)}, {"a": torch.zeros(30)}
        state_dict.broadcast_state_dict(full, local, torch.device("cpu"))
        assert torch.equal(local["a"], full["a"])

    on_ranks(body)
    assert not asked


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
