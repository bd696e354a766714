"""Saves of CUDA tensors in place."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from cairn_testing import wait_until
from device_memory import blocked, control, empty, fill, to_cuda, to_host

import cairn

MIB = 1 << 20


def test_tensors_on_host_and_devices_come_back_as_they_were(store):
    host = {
        "large": torch.randn(3, MIB // 4),
        "small": torch.randn(5),
        "scalar": torch.randn(1)[0],
        "bytes": torch.arange(100_000, dtype=torch.int64).to(torch.uint8),
        "half": torch.randn(300, 7).to(torch.bfloat16),
        "complex": torch.randn(1000, dtype=torch.complex64),
        "empty": torch.empty(0, 3),
    }
    state = {
        "cuda": {name: to_cuda(tensor) for name, tensor in host.items()},
        "other": {name: to_cuda(tensor, device=1) for name, tensor in host.items()},
        "host": host,
        "parameter": torch.nn.Parameter(to_cuda(host["large"])),
        "number": 7,
    }
    report = store.save(1, state)
    assert report.logical_bytes == 3 * sum(t.nbytes for t in host.values()) + host["large"].nbytes
    assert len(store.opened.copies) == 0 and control.DeviceSynchronizations() == 0
    assert report.device_bytes == report.logical_bytes - sum(t.nbytes for t in host.values())
    read = store.read()
    for part in ("cuda", "other", "host"):
        for name, tensor in host.items():
            assert torch.equal(read[part][name], tensor), (part, name)
    assert torch.equal(read["parameter"], host["large"]) and read["number"] == 7


def test_a_stream_may_be_given_by_address(store, streams):
    handle = store.save_async(1, {"t": to_cuda(torch.randn(1000))})
    handle.wait_staged(streams[0].cuda_stream)
    handle.result()
    for wrong in ("stream", object(), True):
        with pytest.raises(cairn.Invalid, match="torch.cuda.Stream is needed"):
            handle.wait_staged(wrong)


def test_a_save_of_two_devices_holds_back_a_stream_of_each(store, streams):
    state = {name: to_cuda(torch.ones(MIB), device) for device, name in enumerate("ab")}
    zeros = [to_cuda(torch.zeros(MIB), device) for device in range(2)]
    handle = store.save_async(1, state)
    for device, name in enumerate("ab"):
        handle.wait_staged(streams[device])
        streams[device].copy(state[name], zeros[device])
    handle.result()
    read = store.read()
    assert bool((read["a"] == 1).all()) and bool((read["b"] == 1).all())
    for stream in streams.values():
        stream.synchronize()


@pytest.mark.parametrize("is_handle_kept", [True, False])
def test_tensors_stay_alive_until_they_are_staged(store, streams, is_handle_kept):
    tensor = to_cuda(torch.randn(MIB))
    expected, alive = to_host(tensor), weakref.ref(tensor.untyped_storage())
    with blocked(streams[0]) as unblock:
        handle = store.save_async(1, {"t": tensor})
        if not is_handle_kept:
            handle = None
        del tensor
        gc.collect()
        assert alive() is not None
        unblock()
    if handle is None:
        store.close()
        wait_until(lambda: alive() is None)
    else:
        handle.wait_staged()
        gc.collect()
        assert alive() is None, "not until the step is durable"
        handle.result()
    with cairn.open(store.address) as again:
        assert torch.equal(again.read()["t"], expected)


@pytest.mark.parametrize("how", ["save", "save_async"])
def test_too_little_device_memory_is_an_error_and_lets_the_tensors_go(store, how):
    tensor = to_cuda(torch.randn(MIB), device=1)
    alive = weakref.ref(tensor)
    control.FailAllocation()
    with pytest.raises(cairn.Unavailable, match="GPU 1 has no [0-9]+ bytes left"):
        saved = getattr(store, how)(1, {"t": tensor})
        saved.result()
    control.ClearFaults()
    assert store.steps() == []
    store.save(1, {"t": tensor})
    assert torch.equal(store.read()["t"], to_host(tensor))
    del tensor
    gc.collect()
    assert alive() is None


def test_a_saver_lets_the_training_go_on_behind_the_copies(store, streams):
    from cairn.torch import Saver

    tensor = empty((2 * MIB,))
    more = [to_cuda(torch.full((2 * MIB,), float(step))) for step in range(4)]
    with Saver(store, every=1) as saver:
        for step in range(4):
            streams[0].copy(tensor, more[step])
            saver.step(step, {"t": tensor})
    for step in range(4):
        assert bool((store.read(step=step)["t"] == step).all())


def test_without_a_device_layer_tensors_go_by_way_of_host_copies(store, monkeypatch):
    from cairn._base import devices
    from cairn._tensors.host_copies import Round

    values = torch.randn(100, dtype=torch.complex64)
    copied = []
    monkeypatch.setattr(devices, "reaches_cuda", lambda: False)
    # What torch would do on a GPU.
    monkeypatch.setattr(Round, "tensor", lambda self, t: copied.append(t) or to_host(t))
    store.save(1, {"t": to_cuda(values)})
    assert len(copied) == 1 and torch.equal(store.read()["t"], values)


def test_tensors_on_a_device_have_no_deltas(store):
    host = torch.randn(MIB).to(torch.bfloat16)
    tensor = to_cuda(host)
    tuning = cairn.SaveTuning(deltas=True)
    store.save(1, {"t": tensor}, tuning=tuning)
    host[::200] += 1
    fill(tensor, host)
    assert store.save(2, {"t": tensor}, tuning=tuning).written_bytes == host.nbytes
    assert torch.equal(store.read(step=2)["t"], host)
