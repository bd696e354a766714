"""Tensors in device memory: which of them C++ can access, in which order, and for how long.

C++ reads and fills the memory of CUDA tensors in place, with copies on its own streams that run
concurrently with the caller's streams (core/device/device.h). This module is responsible for three
things:

1. Access: C++ can access the memory of CUDA devices, in a build with the CUDA layer and with a
   driver. Tensors on other accelerators, or in a build without that layer, go through host copies.
2. Order: the copies run after the work that is on the current stream of each device at the call. If
   work on another stream still writes the tensors, the current stream must wait for it
   (``torch.cuda.current_stream().wait_stream(other)``).
3. Lifetime: torch's allocator reuses freed memory as soon as its own streams allow it.
   ``Tensor.record_stream`` accepts only streams that torch has created, so a reference to each
   tensor of a save is kept until its bytes have left the device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from cairn import _cairn
from cairn._base import dtypes
from cairn.errors import Invalid

HOST = -1
"""Memory of this host, in place of a device number."""

Streams = list[tuple[int, int]]
"""Device and address (``cuda_stream``) of each stream."""


def device_of(tensor: Any) -> int | None:
    """The location of a torch tensor for C++: HOST or a device number; None for memory that C++
    cannot access."""
    kind = tensor.device.type
    if kind == "cpu":
        return HOST
    return tensor.device.index if kind == "cuda" and reaches_cuda() else None


def reaches_cuda() -> bool:
    """True if C++ can access CUDA devices. Looks for the driver."""
    return _cairn.device_problem() is None


def is_reached(device: Any) -> bool:
    """True for a device of torch, or its name, whose memory C++ fills directly."""
    if device is None:
        return False
    return dtypes.require_torch().device(device).type == "cuda" and reaches_cuda()


def current_streams(devices: Iterable[int]) -> Streams:
    """The current stream of each device, on this thread."""
    torch = dtypes.loaded_torch()  # which tensors on devices have imported
    return [(device, int(torch.cuda.current_stream(device).cuda_stream)) for device in devices]


def load(
    native: _cairn.Store, step: _cairn.StoredStep, requests: _cairn.Requests, **options: Any
) -> _cairn.ReadReport:
    """Reads what is requested; device memory is filled in the order of the current streams.
    Converted ``contents`` convert what is read, without the other options.
    """
    contents = options.get("contents")
    if contents is not None and contents.is_converted:
        return contents.conversion.load(native, requests)
    return native.load(step, requests, current_streams(requests.devices()), **options)


def stream_of(stream: Any) -> tuple[int, int]:
    """Device and address of a ``torch.cuda.Stream``, or of a stream of the current device that the
    caller gives by address. Raises Invalid for anything else."""
    if isinstance(stream, int) and not isinstance(stream, bool):
        return dtypes.require_torch().cuda.current_device(), stream
    device = getattr(getattr(stream, "device", None), "index", None)
    if device is None or not hasattr(stream, "cuda_stream"):
        raise Invalid(
            f"stream={stream!r}: a torch.cuda.Stream is needed, or the address of one (an int)"
        )
    return device, int(stream.cuda_stream)


class TensorKeepAlive:
    """Keeps tensors in device memory alive until a background save has read them.

    Threads: all methods may be called from any thread.
    """

    def __init__(self, native: _cairn.SaveHandle, tensors: list[Any]) -> None:
        self._native = native
        self._tensors = tensors
        self._done = threading.Event()
        try:
            # Not a daemon: at exit Python waits for it, at most as long as the save takes.
            threading.Thread(target=self._release_when_staged, name="cairn-staged").start()
        except RuntimeError:  # no thread can start, for example because Python is shutting down
            self._release_when_staged()

    def wait(self) -> None:
        """Waits until the bytes have left the device. Ctrl-C ends the wait."""
        self._done.wait()

    def _release_when_staged(self) -> None:
        try:
            self._native.wait_staged()
        finally:
            self._tensors.clear()
            self._done.set()
