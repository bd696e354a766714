"""Loads into CUDA tensors in place."""

from __future__ import annotations

import pytest
import torch
from cairn_testing import damage, payload
from device_memory import control, empty, to_host

import cairn

MIB = 1 << 20


@pytest.fixture
def saved(store):
    """A state of host tensors, which is step 1 of the store."""
    state = {
        "large": torch.randn(3, MIB),
        "small": torch.randn(5),
        "matrix": torch.randn(1000, 300),
        "half": torch.randn(300, 7).to(torch.bfloat16),
        "complex": torch.randn(1000, dtype=torch.complex64),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
    }
    store.save(1, state)
    control.ResetCounters()
    return state


def blank(saved):
    """The same state on two devices, with other contents."""
    return {
        name: empty(tuple(tensor.shape), tensor.dtype, device=i % 2)
        for i, (name, tensor) in enumerate(saved.items())
    }


def test_a_state_on_devices_is_filled_in_place(store, saved):
    state = blank(saved)
    addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
    store.load(state)
    for name, tensor in saved.items():
        assert state[name].data_ptr() == addresses[name]
        assert torch.equal(to_host(state[name]), tensor), name
    assert control.PageableCopies() == 0 and control.DeviceSynchronizations() == 0
    assert control.BytesToDevice() >= sum(tensor.nbytes for tensor in saved.values())


def test_meta_tensors_get_memory_on_the_device(store, saved):
    state = {"matrix": torch.empty(1000, 300, device="meta")}
    store.load(state, strict=False, device="cuda:1")
    assert state["matrix"].device == torch.device("cuda:1")
    assert torch.equal(to_host(state["matrix"]), saved["matrix"])


def test_a_slice_is_read_into_a_tensor_on_the_device(store, saved):
    out = empty((100, 50))
    assert store.read_slice("matrix", [(200, 300), (10, 60)], out=out) is out
    assert torch.equal(to_host(out), saved["matrix"][200:300, 10:60])


def test_damaged_bytes_are_found(store, saved, path):
    damage(path, payload(saved["large"][1]))
    with pytest.raises(cairn.Corrupt):
        store.load({"large": empty((3, MIB))}, strict=False)


def test_memory_on_devices_is_checked_there(store, saved):
    state = blank(saved)
    store.load(state)
    control.ResetCounters()
    report = store.check(state)
    assert report.equal and report.bytes_read == 0
    assert control.BytesToHost() < saved["large"].nbytes // 100
    saved["matrix"][999, 299] += 1
    store.save(2, saved)
    assert list(store.check(state).different) == ["matrix"]
