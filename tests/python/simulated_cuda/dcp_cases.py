"""DCP's saves and loads of CUDA tensors, in one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same
from device_memory import control, empty, to_cuda, to_host
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.utils._pytree import tree_map_only

import cairn
from cairn.dcp import CairnReader, CairnWriter

MIB = 1 << 20


def _save(state, path, step, **options):
    writer = CairnWriter(path, step=step, **options)
    dcp.save(state, storage_writer=writer, no_dist=True)


@pytest.mark.parametrize("ahead", [1, 512 * MIB])
def test_what_is_saved_from_devices_comes_back_there(path, ahead):
    host = {
        "large": torch.randn(3, MIB // 4),
        "small": torch.randn(5),
        "scalar": torch.tensor(7),
        "half": torch.randn(300, 7).to(torch.bfloat16),
        "complex": torch.randn(1000, dtype=torch.complex64),
        "columns": torch.randn(100, 300)[:, 10:20],
        "nested": {"list": [torch.randn(70_000), 3], "text": "as it is"},
    }
    state = {
        "first": tree_map_only(torch.Tensor, to_cuda, host),
        "second": tree_map_only(torch.Tensor, lambda tensor: to_cuda(tensor, device=1), host),
        "host": host,
    }
    _save(state, path, 1, per_thread_copy_ahead=ahead)
    assert control.PageableCopies() == 0 and control.DeviceSynchronizations() == 0
    with cairn.open(path) as store:
        assert_same(store.read(), dict.fromkeys(state, host))
    target = tree_map_only(
        torch.Tensor, lambda t: empty(tuple(t.shape), t.dtype) if t.is_cuda else t * 0, state
    )
    dcp.load(target, storage_reader=CairnReader(path), no_dist=True)
    loaded = tree_map_only(torch.Tensor, lambda t: to_host(t) if t.is_cuda else t, target)
    assert_same(loaded, dict.fromkeys(state, host))
    assert control.PageableCopies() == 0


def test_tensors_are_not_copied_to_the_host_before_they_are_written(path, monkeypatch):
    from cairn._tensors.host_copies import Round

    monkeypatch.setattr(Round, "tensor", lambda self, tensor: pytest.fail("copied"))
    _save({"t": to_cuda(torch.randn(1000)), "n": [to_cuda(torch.ones(3))]}, path, 1)


def test_a_planner_may_make_tensors_on_the_device(path):
    class Doubling(DefaultSavePlanner):
        def transform_object(self, write_item, object):
            return to_cuda(to_host(object) * 2) if object.is_cuda else object

    state = {name: to_cuda(torch.full((MIB,), float(i))) for i, name in enumerate("abc")}
    dcp.save(
        state,
        storage_writer=CairnWriter(path, step=1, per_thread_copy_ahead=MIB),
        planner=Doubling(),
        no_dist=True,
    )
    with cairn.open(path) as store:
        read = store.read()
    assert all(bool((read[name] == 2 * i).all()) for i, name in enumerate("abc"))
