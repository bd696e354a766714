"""What the tests of this folder need of a GPU, and why they cannot run without one.

They need PyTorch with CUDA and the package, but not pytest. They access tensors through `machine`,
so that tests/python/simulated_cuda can run them on a simulated GPU.
"""

from __future__ import annotations

import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def why_not() -> str | None:
    """The reason why nothing can run here; None if everything can."""
    try:
        import torch
    except ImportError as error:
        return f"PyTorch cannot be imported: {error}"
    if not torch.cuda.is_available():
        return "torch.cuda finds no GPU"
    try:
        import cairn
    except ImportError as error:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"the Python package cannot be imported by Python {version}: {error}"
    del cairn
    return None


class Gpu:
    """Device 0, through torch."""

    why_not = staticmethod(why_not)
    computes = True
    """False: the device runs only the copies of Cairn and of this class."""

    @property
    def dtypes(self) -> list[Any]:
        import torch

        names = "uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 "
        names += "float64 complex64 complex128 bool float8_e4m3fn float8_e5m2"
        return [getattr(torch, name) for name in names.split() if hasattr(torch, name)]

    def views(self, base: Any, places: list[tuple]) -> list[Any]:
        """Tensors (shape, strides, offset in elements) in one storage with the values of `base`."""
        storage = base.cuda()
        return [storage.as_strided(*place) for place in places]

    def empty(self, shape: tuple, dtype: Any) -> Any:
        import torch

        return torch.empty(shape, dtype=dtype, device="cuda")

    def to_host(self, tensor: Any) -> Any:
        return tensor.cpu()

    def enqueue_copy(self, target: Any, source: Any) -> None:
        """Copies between row-major tensors on the device, on the current stream."""
        target.copy_(source)

    @contextmanager
    def busy_stream(self) -> Iterator[Any]:
        """Makes another stream current, which is busy for a while."""
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(300_000_000)  # cycles: a fraction of a second
            yield stream
        torch.cuda.current_stream().wait_stream(stream)


machine: Any = Gpu()


def use(other: Any) -> None:
    """Sets a machine other than this host's GPU. To be called before the test modules are
    imported."""
    global machine
    machine = other


def needs_torch_kernels(case: Any) -> Any:
    """A class of tests that compute on the device with PyTorch's own kernels."""
    return unittest.skipUnless(machine.computes, "PyTorch computes nothing on this device")(case)


def to_gpu(host: Any) -> Any:
    """A copy in host memory of a tensor on the device, with its values and strides."""
    base = host.contiguous() if host.dim() == 0 else host
    (tensor,) = machine.views(base, [(tuple(host.shape), tuple(base.stride()), 0)])
    return tensor


def bits(tensor: Any) -> Any:
    """The row-major bytes of a tensor, in host memory."""
    import torch

    host = machine.to_host(tensor) if tensor.is_cuda else tensor
    return host.contiguous().reshape(-1).view(torch.uint8)


class GpuTest(unittest.TestCase):
    """Provides a folder for a store. Skips the tests, with the reason, if there is no GPU."""

    def setUp(self) -> None:
        reason = machine.why_not()
        if reason is not None:
            self.skipTest(f"needs a GPU: {reason}")
        folder = tempfile.TemporaryDirectory(prefix="cairn-gpu-test-")
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "store"

    def open_store(self) -> Any:
        import cairn

        store = cairn.open(self.path, mode="a")
        self.addCleanup(store.close)
        return store

    def assert_same_bits(self, got: Any, expected: Any, what: str = "") -> None:
        import torch

        self.assertEqual(tuple(got.shape), tuple(expected.shape), what)
        self.assertEqual(got.dtype, expected.dtype, what)
        self.assertTrue(torch.equal(bits(got), bits(expected)), f"other bits: {what}")


def random_bits(dtype: Any, shape: tuple) -> Any:
    """Random bit patterns of any dtype in host memory; bools are 0 and 1."""
    import torch

    if dtype == torch.bool:
        return torch.randint(0, 2, shape).bool()
    count = 1
    for size in shape:
        count *= size
    width = torch.empty(0, dtype=dtype).element_size()
    data = torch.randint(0, 256, (count * width,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
