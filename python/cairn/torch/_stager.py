"""Copies of a state in host memory that is reused from staging to staging: `StateDictStager`, and
`CairnStager` for `torch.distributed.checkpoint.async_save`."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch

from cairn._base.closing import Closing
from cairn._tensors.host_copies import HostCopies, Round
from cairn.errors import Invalid
from cairn.torch._copier import Copier


class CopiesUnderWay:
    """Copies that devices are still making, and the storages that they read, which must stay
    alive."""

    def __init__(self, round: Round | None, events: list[Any]) -> None:
        self._round = round
        self._events = events

    def done(self) -> bool:
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()
        self._round = None


def _pinned_as_in_torch(pin_memory: bool | None) -> bool | None:
    if pin_memory and not torch.cuda.is_available():
        warnings.warn(
            "pin_memory=True is ignored: torch finds no CUDA device to pin memory for", stacklevel=3
        )
        return None
    return pin_memory


def _chosen(a: bool | None, b: bool | None, names: str) -> bool | None:
    """The one of two names of an argument that is given. Raises Invalid if they differ."""
    if a is not None and b is not None and a != b:
        raise Invalid(f"{names} are the same argument: give one of them")
    return b if a is None else a


class Staged:
    """A state that is being copied to host memory. All methods may be called from any thread.

    Attributes:
        state: the copy. Its tensors may be read only after :meth:`wait`.
    """

    def __init__(self, state: Any, copies: CopiesUnderWay) -> None:
        self.state = state
        self._copies = copies

    def done(self) -> bool:
        """True once all copies are complete."""
        return self._copies.done()

    def wait(self) -> Any:
        """Waits until all copies are complete, and returns the state.

        After this call the sources may change. Work that is enqueued on the stream that was current
        at the staging may change them earlier, because it runs after the copies.
        """
        self._copies.wait()
        return self.state


class StateDictStager(Closing):
    """Copies states into its own host memory. Create it once; it should live as long as the job.

    Result of a staging
        The same structure: dicts, lists, tuples, named tuples, dataclasses and other objects are
        copied, and an object that occurs twice remains one object. Tensors keep dtype, shape,
        strides, offset and subclass; tensors that share memory share one copy. Plain values remain
        the same objects. Objects with a ``__deepcopy__`` copy themselves: plain tensors in them are
        staged, Parameters in them are cloned on their device.

    Memory
        The copy of a storage lives as long as the storage. The next staging reuses it, unless a
        staged tensor still uses it; then that staging makes another copy. To avoid the memory of a
        second copy, drop one staged state before staging the next. A tensor that is a small view of
        a large storage causes a copy of the complete storage.

    Threads: only one staging runs at a time; any thread may use a staged state.

    The first three arguments are the same as for torch's class with this name.

    Args:
        pin_memory: as ``pinned``, but without CUDA, ``True`` is a warning and is ignored.
        share_memory: as ``shared``.
        pin_memory_min_bytes: storages with fewer bytes are not page-locked.
        pinned: page-locks the copies of storages on CUDA devices. This is the default; ``True`` is
            refused without CUDA.
        shared: uses shared memory, for another process that writes the checkpoint. Each copy holds
            one file descriptor.

    Raises:
        Invalid: ``pinned=True``, and torch finds no CUDA device; two names of one argument differ.
    """

    def __init__(
        self,
        pin_memory: bool | None = None,
        share_memory: bool | None = None,
        pin_memory_min_bytes: int = 1,
        *,
        pinned: bool | None = None,
        shared: bool = False,
    ) -> None:
        pinned = _chosen(_pinned_as_in_torch(pin_memory), pinned, "pin_memory and pinned")
        shared = bool(_chosen(share_memory, shared or None, "share_memory and shared"))
        self._copies = HostCopies(pinned=pinned, shared=shared, pin_min_bytes=pin_memory_min_bytes)
        self._lock = threading.Lock()
        self._last = CopiesUnderWay(None, [])
        self._closed = False

    @property
    def copy_count(self) -> int:
        """Number of storages that have a host copy."""
        return len(self._copies)

    @property
    def copy_bytes(self) -> int:
        """Bytes of host memory in the copies."""
        return self._copies.total_bytes

    def stage(self, state: Any, non_blocking: bool = False) -> Any:
        """Copies `state`, and returns the copy.

        Args:
            non_blocking: as in torch: returns while copies from CUDA devices are running. The
                caller synchronizes with the current streams before it reads the copy, and keeps the
                state unchanged until then. :meth:`stage_async` returns an object to wait for.

        Raises:
            Invalid: something in the state cannot be copied (the message contains its path), or the
                stager is closed.
            Unavailable: no host memory for a copy.
        """
        staged = self.stage_async(state)
        # One wait per device, not one per tensor.
        return staged.state if non_blocking else staged.wait()

    def stage_async(self, state: Any, *, non_blocking: bool = True) -> Staged:
        """Starts to copy `state`. Returns while only copies from CUDA devices are running.

        These copies are enqueued on the current stream of each device, after the work that is
        already there. Copies from host memory, from other devices, and into memory that is not
        pinned are complete on return. Raises as :meth:`stage`.
        """
        with self._lock:
            if self._closed:
                raise Invalid("the stager is closed: create another one to stage again")
            self._last.wait()  # another stream may still be filling the copies
            round = self._copies.round(non_blocking=non_blocking)
            try:
                with torch.no_grad():
                    copied = Copier(round).copy(state)
            finally:
                # Also after an error: the copies that were started may still be running.
                self._last = CopiesUnderWay(round, round.events())
                if self._last.done():
                    self._last.wait()
            return Staged(copied, self._last)

    def close(self) -> None:
        """Drops all copies. Staged states remain valid. May be called again."""
        with self._lock:
            self._last.wait()
            self._closed = True
            self._copies.clear()


class CairnStager:
    """An ``AsyncStager`` that reuses its host copies from save to save (:class:`StateDictStager`).

        stager = CairnStager()                      # once, before the loop
        future = dcp.async_save(state, storage_writer=..., async_stager=stager)
        ...
        future.result()                             # before the next async_save
        stager.close()                              # after the last one

    A save that starts while another is still writing gets separate host copies. To avoid their
    memory, wait for the future first.

    Threads: one caller at a time.

    Args:
        pinned: page-locks copies from CUDA devices, as in :class:`StateDictStager`.
        shared: places the copies in shared memory, which ``AsyncCheckpointerType.PROCESS`` sends
            without copying. Otherwise torch moves them there at the first save; this is not
            possible for pinned copies.
        background: stages on a thread, so that ``async_save`` returns immediately with a future for
            the staging. The state must not change before the future is done.
    """

    # Part of torch's protocol, which this follows without importing it.
    _synchronize_after_execute = False

    def __init__(
        self, *, pinned: bool | None = None, shared: bool = False, background: bool = False
    ) -> None:
        self._stager = StateDictStager(pinned=pinned, shared=shared)
        self._thread = ThreadPoolExecutor(1, "cairn-stager") if background else None
        self._staging: Future[Any] | None = None

    @property
    def stager(self) -> StateDictStager:
        """The underlying stager, for its counters."""
        return self._stager

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False: staging without a thread is complete when `stage` returns."""
        return self._synchronize_after_execute

    def stage(self, state_dict: Any, **_unused: Any) -> Any:
        """Returns the staged state, or with `background` a future of it. Raises as
        :meth:`StateDictStager.stage`."""
        if self._thread is None:
            return self._stager.stage(state_dict)
        uses_cuda = torch.cuda.is_initialized()
        stream = torch.cuda.current_stream() if uses_cuda else None
        self._staging = self._thread.submit(self._stage_on, stream, state_dict)
        return self._staging

    def _stage_on(self, stream: Any, state_dict: Any) -> Any:
        # The caller's stream, so that the copies run after the work that the caller has enqueued.
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            return self._stager.stage_async(state_dict).wait()

    def synchronize_staging(self) -> None:
        """Waits until the last staging is complete, and raises its error if it failed."""
        if self._staging is not None:
            self._staging.result()

    def close(self) -> None:
        """Waits for a running staging, and drops all copies. May be called again."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)
        self._stager.close()
