"""Fixtures: a torch that accepts CUDA devices, and a simulated machine of four devices with NCCL.

This is a plugin and not a conftest, which the tests of the real package would load too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
import torch
from device_memory import Memory, Stream, control, empty

# Small delays of all stream operations, so that a missing wait results in wrong bytes.
_JITTER_US = 200
_DEVICES = 4
current = threading.local()
"""Per thread: `device`, 0 unless it is set."""
_libraries: list[torch.library.Library] = []
"""What `start` has registered, for as long as it is here."""


def start() -> None:
    """Starts the machine, and lets torch create tensors on its devices."""
    # Once, because the CUDA layer keeps what it has created for the devices.
    control.Reset(_DEVICES, 1 << 30, _JITTER_US)
    control.NcclReset()
    os.environ["CAIRN_NCCL_LIBRARY"] = control.NcclPath().decode()
    torch.cuda._lazy_init = lambda: None
    library = torch.library.Library("aten", "IMPL")

    def number(device):
        return torch.cuda.current_device() if device.index is None else device.index

    def new(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return empty(tuple(size), dtype or torch.float32, number(device))

    def new_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return empty(tuple(size), dtype or torch.float32, number(device), tuple(stride))

    def as_strided(tensor, size, stride, storage_offset=None):
        assert not storage_offset
        return Memory.of(tensor).tensor(tensor.dtype, tuple(size), tuple(stride))

    def view(tensor, size):
        assert tensor.is_contiguous()
        strides = torch.empty(tuple(size), device="meta").stride()
        return Memory.of(tensor).tensor(tensor.dtype, tuple(size), strides)

    library.impl("as_strided", as_strided, "CUDA")
    library.impl("view", view, "CUDA")
    library.impl("empty.memory_format", new, "CUDA")
    library.impl("empty_strided", new_strided, "CUDA")
    _libraries.append(library)


def use_streams(monkeypatch: pytest.MonkeyPatch) -> dict[int, Stream]:
    """Makes new streams the current ones, and returns them by device."""
    made = {device: Stream(device) for device in range(_DEVICES)}

    def current_stream(device=0):
        return made[device if isinstance(device, int) else torch.device(device).index or 0]

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: getattr(current, "device", 0))
    control.ResetCounters()
    return made


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    start()
    yield
    _libraries.clear()


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> dict[int, Stream]:
    """The current streams, by device."""
    return use_streams(monkeypatch)
