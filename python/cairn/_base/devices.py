"""Tensors in device memory: which of them C++ reaches, in whose order, and how long they must stay.

C++ reads and fills the memory of CUDA tensors where it is, with copies of its own that run beside
the caller's streams (core/device/device.h). Three things are seen to here:

1. Which memory it reaches: that of CUDA devices, in a build with the CUDA layer and with a driver.
   What lies elsewhere (other kinds of accelerators), or where there is no such build, goes by way
   of host copies.
2. Order: the copies run after the work that the current stream of each device holds at the call.
   Work on other streams that still writes the tensors must be known to that stream
   (``torch.cuda.current_stream().wait_stream(other)``).
3. Life: torch's allocator gives freed memory to others as soon as its own streams allow it. It
   cannot be told of streams that torch has not made (``Tensor.record_stream``), so a reference to
   each tensor of a save is kept until its bytes have left the device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from cairn import _cairn
from cairn._base import dtypes
from cairn.errors import Invalid

HOST = -1
"""Instead of a device's number: memory of this host."""

Streams = list[tuple[int, int]]
"""Device and address (``cuda_stream``) of each."""


def device_of(tensor: Any) -> int | None:
    """Where C++ finds the memory of a torch tensor: HOST or a device's number; None for memory that
    it does not reach."""
    kind = tensor.device.type
    if kind == "cpu":
        return HOST
    return tensor.device.index if kind == "cuda" and reaches_cuda() else None


def reaches_cuda() -> bool:
    """True if C++ has a way to CUDA devices. Looks for the driver."""
    return _cairn.device_problem() is None


def current_streams(devices: Iterable[int]) -> Streams:
    """The current stream of each device, on this thread."""
    return [(device, _address_of(_cuda().current_stream(device))) for device in devices]


def load(
    native: _cairn.Store, step: _cairn.StepInfo, requests: _cairn.Requests, **options: Any
) -> tuple[int, int, float]:
    """Reads what is requested, into device memory in the order of the current streams. Returns bytes
    read, those of them that went straight to devices, and seconds."""
    return native.load(step, requests, current_streams(requests.devices()), **options)


def stream_of(stream: Any) -> tuple[int, int]:
    """Device and address of a ``torch.cuda.Stream``, or of a stream of the current device that is
    given by address. Raises Invalid for anything else."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return _cuda().current_device(), stream
    device = getattr(getattr(stream, "device", None), "index", None)
    if device is None or not hasattr(stream, "cuda_stream"):
        raise Invalid(
            f"stream={stream!r}: a torch.cuda.Stream is needed, or the address of one (an int)"
        )
    return device, _address_of(stream)


def _address_of(stream: Any) -> int:
    return int(stream.cuda_stream)


def _cuda() -> Any:
    return dtypes.require_torch().cuda


class TensorKeepAlive:
    """Tensors that a save in the background reads in device memory: referenced until it has.

    Threads: all methods may be called from any thread.
    """

    def __init__(self, native: _cairn.SaveHandle, tensors: list[Any]) -> None:
        self._native = native
        self._tensors = tensors
        self._done = threading.Event()
        try:
            # Not a daemon: Python waits for it at the end, which is no longer than the save takes.
            threading.Thread(target=self._release_when_staged, name="cairn-staged").start()
        except RuntimeError:  # no more threads, as when Python is about to end
            self._release_when_staged()

    def wait(self) -> None:
        """Waits until the bytes have left the device. Ctrl-C ends the waiting."""
        self._done.wait()

    def _release_when_staged(self) -> None:
        try:
            self._native.wait_staged()
        finally:
            self._tensors.clear()
            self._done.set()
