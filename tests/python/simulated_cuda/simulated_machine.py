"""Fixtures: a torch that believes in CUDA, and a simulated machine of two devices. A plugin and no
conftest, which tests on the real package would load too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from device_memory import Memory, Stream, control, empty

# Small delays of all that streams do, so that a wait that is missing shows as wrong bytes.
_JITTER_US = 200


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    # Once, as the CUDA layer keeps what it has made of the devices.
    control.Reset(2, 1 << 30, _JITTER_US)
    torch.cuda._lazy_init = lambda: None
    library = torch.library.Library("aten", "IMPL")

    def new(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
        return empty(tuple(size), dtype or torch.float32, device.index or 0)

    def new_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
        return empty(tuple(size), dtype or torch.float32, device.index or 0, tuple(stride))

    def as_strided(tensor, size, stride, storage_offset=None):
        assert not storage_offset
        return Memory.of(tensor).tensor(tensor.dtype, tuple(size), tuple(stride))

    library.impl("as_strided", as_strided, "CUDA")
    library.impl("empty.memory_format", new, "CUDA")
    library.impl("empty_strided", new_strided, "CUDA")
    yield


@pytest.fixture(autouse=True)
def streams(monkeypatch: pytest.MonkeyPatch) -> dict[int, Stream]:
    """The current streams, by device."""
    current = {device: Stream(device) for device in range(2)}

    def current_stream(device=0):
        return current[device if isinstance(device, int) else torch.device(device).index or 0]

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    control.ResetCounters()
    return current
