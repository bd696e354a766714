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


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def test_a_tensor_here_is_a_plain_one_of_cuda():
    tensor = to_cuda(_random(3, 4))
    assert type(tensor) is torch.Tensor and tensor.device == torch.device("cuda:0")
    assert cairn._cairn.device_problem() is None


def test_tensors_on_host_and_devices_come_back_as_they_were(store):
    host = {
        "large": _random(3, MIB // 4),
        "small": _random(5),
        "scalar": _random(1)[0],
        "bytes": torch.arange(100_000, dtype=torch.int64).to(torch.uint8),
        "half": _random(300, 7).to(torch.bfloat16),
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
    assert len(store._copies) == 0 and control.DeviceSynchronizations() == 0
    assert report.device_bytes == report.logical_bytes - sum(t.nbytes for t in host.values())
    read = store.read()
    for part in ("cuda", "other", "host"):
        for name, tensor in host.items():
            assert torch.equal(read[part][name], tensor), (part, name)
    assert torch.equal(read["parameter"], host["large"]) and read["number"] == 7


def test_an_unchanged_state_is_neither_copied_nor_written(store):
    state = {"large": to_cuda(_random(2 * MIB)), "small": to_cuda(_random(100))}
    for save in (store.save, lambda *a: store.save_async(*a).result()):
        first = save(len(store.steps()), state)
        control.ResetCounters()
        second = save(len(store.steps()), state)
        assert first.logical_bytes == second.logical_bytes == 8 * MIB + 400
        assert first.device_bytes == first.written_bytes and second.device_bytes == 0
        assert second.written_bytes == 0 and second.chunks_reused == second.chunks
        assert control.BytesToHost() < 64 * 1024, "only digests cross the bus"


def test_a_save_follows_the_current_stream(store, streams):
    tensor, new = to_cuda(torch.zeros(MIB)), to_cuda(torch.ones(MIB))
    with blocked(streams[0]) as block:
        streams[0].copy(tensor, new)
        handle = store.save_async(1, {"t": tensor})
        assert not handle.done()
        block.open()
    handle.result()
    assert bool((store.read()["t"] == 1).all())


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_stream_held_back_changes_tensors_after_the_copies(store, streams, snapshot):
    tensor, new = to_cuda(torch.ones(4 * MIB)), to_cuda(torch.zeros(4 * MIB))
    for step in range(3):
        fill(tensor, torch.tensor(float(step)))
        handle = store.save_async(step, {"t": tensor}, device_snapshot=snapshot)
        handle.wait_staged(streams[0])
        streams[0].copy(tensor, new)
        handle.result()
        assert bool((store.read(step=step)["t"] == step).all())
        streams[0].synchronize()
        assert bool((to_host(tensor) == 0).all())


def test_a_stream_may_be_given_by_address(store, streams):
    handle = store.save_async(1, {"t": to_cuda(_random(1000))})
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


def test_tensors_stay_alive_until_they_are_staged(store, streams):
    tensor = to_cuda(_random(MIB))
    expected, alive = to_host(tensor), weakref.ref(tensor.untyped_storage())
    with blocked(streams[0]) as block:
        handle = store.save_async(1, {"t": tensor})
        del tensor
        gc.collect()
        assert alive() is not None
        block.open()
    handle.wait_staged()
    gc.collect()
    assert alive() is None, "not until the step is durable"
    handle.result()
    assert torch.equal(store.read()["t"], expected)


def test_tensors_stay_alive_without_the_handle(store, streams):
    tensor = to_cuda(_random(MIB))
    expected, alive = to_host(tensor), weakref.ref(tensor.untyped_storage())
    with blocked(streams[0]) as block:
        store.save_async(1, {"t": tensor})
        del tensor
        gc.collect()
        assert alive() is not None
        block.open()
    store.close()
    wait_until(lambda: alive() is None)
    with cairn.open(store._address) as again:
        assert torch.equal(again.read()["t"], expected)


def test_too_little_device_memory_is_an_error_with_its_name(store):
    tensor = to_cuda(_random(MIB), device=1)
    control.FailAllocation()
    with pytest.raises(cairn.Unavailable, match="GPU 1 has no [0-9]+ bytes left"):
        store.save(1, {"t": tensor})
    control.ClearFaults()
    assert store.steps() == []
    store.save(1, {"t": tensor})
    assert torch.equal(store.read()["t"], to_host(tensor))


def test_a_failed_save_lets_its_tensors_go(store):
    tensor = to_cuda(_random(MIB))
    alive = weakref.ref(tensor)
    control.FailAllocation()
    with pytest.raises(cairn.Unavailable, match="GPU 0 has no [0-9]+ bytes left"):
        handle = store.save_async(1, {"t": tensor})
        handle.wait_staged()
        handle.result()
    control.ClearFaults()
    del tensor
    gc.collect()
    assert alive() is None and store.steps() == []


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


def test_meta_tensors_are_refused(store):
    with pytest.raises(cairn.Invalid, match="meta"):
        store.save(1, {"t": torch.empty(3, device="meta")})


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
    host = _random(MIB).to(torch.bfloat16)
    tensor = to_cuda(host)
    store.save(1, {"t": tensor}, deltas=True)
    host[::200] += 1
    fill(tensor, host)
    assert store.save(2, {"t": tensor}, deltas=True).written_bytes == host.nbytes
    assert torch.equal(store.read(step=2)["t"], host)


@pytest.mark.parametrize("how", ["save", "save_async"])
def test_statistics_of_tensors_on_a_device_are_refused_with_the_command_for_them(store, how):
    state = {"host": _random(10), "t": to_cuda(_random(10))}
    with pytest.raises(cairn.Invalid, match="kv-admin statistics.*t"):
        getattr(store, how)(1, state, statistics=True)
    assert store.steps() == []
