"""Host copies of torch storages that live as long as the storages.

Staging a state copies storages, not tensors, so that tensors that share a storage share its copy.
The copy of a storage is kept and reused by the next staging:

1. A copy belongs to one storage, which it references weakly. When the storage is freed, so is its
   copy, unless a staged tensor still uses it.
2. A storage whose size has changed gets a new copy in place of the old one.
3. A copy is made once per round, whatever the number of tensors in the storage.
4. A copy of an earlier round is never overwritten while it is in use: a copy that a staged tensor
   still uses is left to that tensor, and the storage gets a new copy.

The CUDA parts (pinned copies, events after asynchronous copies) run only where torch finds a GPU.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from cairn._base import dtypes
from cairn.errors import Invalid, Unavailable


class _Entry(NamedTuple):
    source: weakref.ref[Any]
    host: Any


class HostCopies:
    """A weak map from a storage to its copy in host memory.

    Threads: the owner must run one round at a time. Storages may be freed by any thread.

    Args:
        pinned: page-locks the copies of storages on CUDA devices, so that the device fills them
            faster and asynchronously. This is the default; ``True`` is refused without CUDA.
        shared: allocates the copies in shared memory, which other processes may map. Each copy
            holds a file descriptor, and all of them count towards the limit of ``/dev/shm``.
        pin_min_bytes: storages with fewer bytes are not page-locked.

    Raises:
        Invalid: ``pinned=True``, and torch finds no CUDA device.
    """

    def __init__(
        self, *, pinned: bool | None = None, shared: bool = False, pin_min_bytes: int = 1
    ) -> None:
        if pinned and not dtypes.require_torch().cuda.is_available():
            raise Invalid(
                "pinned=True: torch finds no CUDA device to pin memory for; omit `pinned`, "
                "and copies from CUDA devices are pinned"
            )
        self._pins = pinned is not False
        self._shared = shared
        self._pin_min_bytes = max(pin_min_bytes, 1)
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def total_bytes(self) -> int:
        """Bytes of host memory in the copies."""
        return sum(entry.host.nbytes() for entry in list(self._entries.values()))

    def clear(self) -> None:
        """Drops all copies. Memory is freed once no staged tensor uses it."""
        self._entries.clear()

    def round(self, *, non_blocking: bool = False) -> Round:
        """Starts a staging."""
        return Round(self, non_blocking)

    def _host_for(self, storage: Any) -> Any:
        """The existing copy of `storage`, or a new one. Its contents are unspecified."""
        key = id(storage)  # unique while the storage is alive
        entry = self._entries.get(key)
        if entry is not None and entry.source() is storage:
            if entry.host.nbytes() == storage.nbytes() and _is_free(entry.host):
                return entry.host
        host = self._allocate(storage.nbytes(), storage.device.type == "cuda")
        self._entries[key] = _Entry(weakref.ref(storage, self._forgetter(key)), host)
        return host

    def _forgetter(self, key: int) -> Any:
        # A weak reference: neither a storage that outlives the map nor a cycle may keep copies
        # alive.
        this = weakref.ref(self)

        def forget(source: weakref.ref[Any]) -> None:
            copies = this()
            entry = None if copies is None else copies._entries.get(key)
            if entry is not None and entry.source is source:
                copies._entries.pop(key, None)

        return forget

    def _allocate(self, size_bytes: int, for_cuda: bool) -> Any:
        torch = dtypes.require_torch()
        try:
            if self._shared:
                host = torch.UntypedStorage._new_shared(size_bytes, device="cpu")
            else:
                host = torch.UntypedStorage(size_bytes, device="cpu")
        except RuntimeError as error:
            raise Unavailable(
                f"no {'shared ' if self._shared else ''}host memory for a copy of {size_bytes} "
                f"bytes ({error})"
            ) from error
        if self._pins and for_cuda and size_bytes >= self._pin_min_bytes:
            _pin(host)
        return host


class Round:
    """One staging: each storage is copied once, at its first use.

    Keeps the storages alive, because a copy may still be running and ids must remain unique.
    """

    def __init__(self, copies: HostCopies, non_blocking: bool) -> None:
        self._copies = copies
        self._non_blocking = non_blocking
        self._done: dict[int, tuple[Any, Any]] = {}
        self._devices: dict[str, Any] = {}

    def tensor(self, tensor: Any) -> Any:
        """`tensor` over the host copy of its storage: same dtype, shape, strides and offset.

        Requires a strided tensor with a storage. The caller applies lazy conjugation and negation.
        """
        torch = dtypes.require_torch()
        host = self._host(tensor.untyped_storage())
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(host, tensor.storage_offset(), tensor.shape, tensor.stride())

    def events(self) -> list[Any]:
        """Events to wait for before the copies are read: one per device, none for the host."""
        return [_record_event(device) for device in self._devices.values()]

    def _host(self, storage: Any) -> Any:
        key = id(storage)
        if key not in self._done:
            host = self._copies._host_for(storage)
            self._copy(storage, host)
            self._done[key] = (storage, host)
        return self._done[key][1]

    def _copy(self, storage: Any, host: Any) -> None:
        is_async = self._non_blocking and _orders_by_stream(storage)
        if is_async:
            self._devices[str(storage.device)] = storage.device
        if storage.nbytes() > 0:
            host.copy_(storage, non_blocking=is_async)


def _is_free(host: Any) -> bool:
    """Whether no tensor uses the copy any more."""
    torch = dtypes.require_torch()
    return torch._C._storage_Use_Count(host._cdata) == 1


def _orders_by_stream(storage: Any) -> bool:
    """True if a copy may run asynchronously, in the order of the device's current stream.

    This holds for CUDA only; copies from other devices are synchronous.
    """
    return storage.device.type == "cuda"


def _record_event(device: Any) -> Any:
    """An event after all work on the device's current stream, including the copies."""
    torch = dtypes.require_torch()
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()
    return event


def _pin(host: Any) -> None:
    """Page-locks the memory of `host` until it is freed.

    The existing memory is registered, because it may be shared memory, and because torch's pinned
    allocator rounds sizes up to powers of two.
    """
    torch = dtypes.require_torch()
    runtime = torch.cuda.cudart()
    address = host.data_ptr()
    code = int(runtime.cudaHostRegister(address, host.nbytes(), 0))
    if code != 0:
        raise Unavailable(
            f"could not pin {host.nbytes()} bytes of host memory (CUDA error {code}): raise the "
            "limit of locked memory, or pass pinned=False"
        )
    unpin = weakref.finalize(host, runtime.cudaHostUnregister, address)
    # CUDA may be shut down by then, and the end of the process releases everything.
    unpin.atexit = False
