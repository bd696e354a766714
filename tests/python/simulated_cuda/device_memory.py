"""CUDA tensors of a torch without CUDA, in the memory of the simulated runtime.

torch imports device memory by DLPack without accessing it. The result is an ordinary torch.Tensor
on device cuda:N; only computations on it fail.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

import cairn

_CUDA = 2  # DLPack's number
_CODES = {
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.float32: (2, 32),
    torch.bfloat16: (4, 16),
    torch.complex64: (5, 64),
}


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("dims", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset_bytes", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [
    ("tensor", _Tensor),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
]


def _load_control() -> ctypes.CDLL:
    library = ctypes.CDLL(
        str(Path(cairn.__file__).parent.parent / "libcairn_simulated_control.so")
    )
    pointer, count = ctypes.c_void_p, ctypes.c_uint64
    for name, result, arguments in (
        ("Reset", None, [ctypes.c_int, count, ctypes.c_int]),
        ("Allocate", pointer, [ctypes.c_int, count]),
        ("Free", None, [pointer]),
        ("Peek", None, [pointer, pointer, count]),
        ("Poke", None, [pointer, pointer, count]),
        ("BytesToHost", count, []),
        ("BytesToDevice", count, []),
        ("PageableCopies", count, []),
        ("DeviceSynchronizations", count, []),
        ("ResetCounters", None, []),
        ("FailAllocation", None, []),
        ("FailCall", None, [ctypes.c_char_p, count]),
        ("ClearFaults", None, []),
        ("Stream", pointer, [ctypes.c_int]),
        ("CopyBehind", ctypes.c_int, [pointer, pointer, count, pointer]),
        ("Synchronize", ctypes.c_int, [pointer]),
        ("Block", pointer, [pointer]),
        ("BlockDefault", pointer, [ctypes.c_int]),
        ("Unblock", None, [pointer]),
        ("NcclPath", ctypes.c_char_p, []),
        ("NcclReset", None, []),
        ("NcclBytes", count, []),
        ("NcclCommunicators", count, []),
        ("NcclFailCall", None, [ctypes.c_char_p]),
    ):
        function = library["Simulated" + name]
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


control = _load_control()
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_lent: dict[int, tuple] = {}
"""The objects that DLPack structures refer to, by address, until torch releases them."""


class Memory:
    """Device memory that is freed with the last tensor in it."""

    owner: Any = None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Memory:
        """The memory of a tensor, which this object keeps alive."""
        memory = cls.__new__(cls)
        memory.device, memory.address = tensor.device.index, tensor.data_ptr()
        memory.owner = tensor
        return memory

    def __init__(self, size_bytes: int, device: int) -> None:
        self.device = device
        self.address = control.Allocate(device, max(size_bytes, 1))
        assert self.address, f"no {size_bytes} bytes of simulated memory on device {device}"

    def __del__(self) -> None:
        if self.owner is None and not sys.is_finalizing():
            control.Free(self.address)

    def tensor(self, dtype: Any, shape: tuple, strides: tuple, offset_bytes: int = 0) -> Any:
        """A tensor in this memory; its storage begins at `offset_bytes`."""
        dims = len(shape)
        sizes = (ctypes.c_int64 * dims)(*shape)
        steps = (ctypes.c_int64 * dims)(*strides)
        code, bits = _CODES[dtype]
        managed = _Managed(
            _Tensor(
                self.address + offset_bytes,
                _Device(_CUDA, self.device),
                dims,
                _DType(code, bits, 1),
                sizes,
                steps,
                0,
            ),
            None,
            _give_back,
        )
        _lent[ctypes.addressof(managed)] = managed, sizes, steps, self
        return torch.utils.dlpack.from_dlpack(
            _new_capsule(ctypes.addressof(managed), b"dltensor", None)
        )


@_Deleter
def _give_back(managed: Any) -> None:
    if _lent is not None:  # Python ends, and its modules are emptied
        _lent.pop(ctypes.addressof(managed.contents), None)


# torch may free tensors after this module has been torn down.
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_give_back))


def to_cuda(source: torch.Tensor, device: int = 0) -> torch.Tensor:
    """A tensor on the device with the values, strides and offset of one in host memory."""
    storage = source.untyped_storage()
    memory = Memory(storage.nbytes(), device)
    control.Poke(memory.address, storage.data_ptr(), storage.nbytes())
    offset_bytes = source.storage_offset() * source.element_size()
    return memory.tensor(source.dtype, tuple(source.shape), source.stride(), offset_bytes)


def empty(
    shape: tuple, dtype: Any = torch.float32, device: int = 0, strides: tuple | None = None
) -> torch.Tensor:
    """An uninitialized tensor on the device."""
    like = torch.empty_strided(
        shape, torch.empty(shape, device="meta").stride() if strides is None else strides,
        dtype=dtype, device="meta",
    )
    memory = Memory(like.untyped_storage().nbytes(), device)
    return memory.tensor(dtype, tuple(shape), like.stride())


def fill(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Overwrites a row-major tensor without using a stream."""
    source = source.to(tensor.dtype).expand(tensor.shape).contiguous()
    control.Poke(tensor.data_ptr(), source.data_ptr(), source.nbytes)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor on a device, as a tensor of its strides in host memory."""
    host = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
    storage = host.untyped_storage()
    if storage.nbytes() > 0:
        control.Peek(storage.data_ptr(), tensor.data_ptr(), storage.nbytes())
    return host


class Stream:
    """The part of torch.cuda.Stream that Cairn uses."""

    def __init__(self, device: int = 0) -> None:
        self.device = torch.device("cuda", device)
        self.cuda_stream = control.Stream(device)
        assert self.cuda_stream

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Enqueues a copy between row-major tensors of one size."""
        size_bytes = target.nbytes
        assert control.CopyBehind(
            target.data_ptr(), source.data_ptr(), size_bytes, self.cuda_stream
        ) == 0

    def synchronize(self) -> None:
        assert control.Synchronize(self.cuda_stream) == 0


@contextmanager
def blocked(stream: Stream) -> Iterator[Callable[[], None]]:
    """Keeps a stream busy until the end of the block, or until the block calls what it is given."""
    with ExitStack() as stack:
        stack.callback(control.Unblock, control.Block(stream.cuda_stream))
        yield stack.close
