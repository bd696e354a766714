"""`StateDictStager`: a state copied to host memory that is kept from staging to staging."""

from __future__ import annotations

import threading
from typing import Any

import torch

from cairn._tensors.host_copies import HostCopies, Round
from cairn.errors import Invalid
from cairn.torch._copier import Copier


class CopiesUnderWay:
    """Copies that devices still make, and what they read, which has to stay until then."""

    def __init__(self, round: Round | None, events: list[Any]) -> None:
        self._round = round
        self._events = events

    def done(self) -> bool:
        return all(event.query() for event in self._events)

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()
        self._round = None


class Staged:
    """A state on its way to host memory. All methods may be called from any thread.

    Attributes:
        state: the copy. Its tensors may be read after :meth:`wait` only.
    """

    def __init__(self, state: Any, copies: CopiesUnderWay) -> None:
        self.state = state
        self._copies = copies

    def done(self) -> bool:
        """True once everything is copied."""
        return self._copies.done()

    def wait(self) -> Any:
        """Waits until everything is copied, and returns the state.

        From then on the sources may be changed by anyone. Work that is enqueued on the stream that
        was current at the staging may change them before that, as it runs after the copies.
        """
        self._copies.wait()
        return self.state


class StateDictStager:
    """Copies states into host memory of its own; made once, and alive as long as the job.

    What a staging gives
        The same structure: dicts, lists, tuples, named tuples, dataclasses and other objects are
        made anew, what was one object stays one object. Tensors keep dtype, shape, strides, offset
        and subclass, and those that share memory share its copy, which is made once. Plain values
        are as they are. Objects that have a ``__deepcopy__`` copy themselves; plain tensors in them
        are staged, Parameters in them are cloned where they are.

    Memory
        The copy of a storage is kept for as long as the storage lives, and used again by the next
        staging, once no staged tensor lies in it any more; until then that staging makes another.
        So drop one staged state before staging the next, to save the memory of a second copy. A
        tensor that is a small view of a large storage brings all of it.

    Threads: stagings follow one another; a staged state may be used by any thread.

    Args:
        pinned: copies of what lies on CUDA devices are page-locked; by default they are. ``True``
            without CUDA is refused.
        shared: shared memory, for a process that writes the checkpoint. One file descriptor for
            each storage while it is kept.

    Raises:
        Invalid: ``pinned=True``, and torch finds no CUDA device.
    """

    def __init__(self, *, pinned: bool | None = None, shared: bool = False) -> None:
        self._copies = HostCopies(pinned=pinned, shared=shared)
        self._lock = threading.Lock()
        self._last = CopiesUnderWay(None, [])
        self._closed = False

    @property
    def copy_count(self) -> int:
        """Storages of which a host copy is kept."""
        return len(self._copies)

    @property
    def copy_bytes(self) -> int:
        """Host memory of the copies that are kept."""
        return self._copies.total_bytes

    def stage(self, state: Any) -> Any:
        """The copy of `state`, complete.

        Raises:
            Invalid: something in the state cannot be copied (the message says where it is), or the
                stager is closed.
            Unavailable: no host memory for a copy.
        """
        return self.stage_async(state).wait()  # one wait a device, not one a tensor

    def stage_async(self, state: Any, *, non_blocking: bool = True) -> Staged:
        """Begins to copy `state`; returns when only copies from CUDA devices are under way.

        Those are enqueued on the current stream of each device, after the work that is there
        already. From host memory, other devices, and into memory that is not pinned, everything is
        copied on return.
        """
        with self._lock:
            if self._closed:
                raise Invalid("the stager is closed: make another to stage again")
            self._last.wait()  # another stream may still be filling the copies
            round = self._copies.round(non_blocking=non_blocking)
            try:
                with torch.no_grad():
                    copied = Copier(round).copy(state)
            finally:
                # After an error too: what it had begun is still under way.
                self._last = CopiesUnderWay(round, round.events())
                if self._last.done():
                    self._last.wait()
            return Staged(copied, self._last)

    def close(self) -> None:
        """Drops all copies. States that were staged stay whole. May be called again."""
        with self._lock:
            self._last.wait()
            self._closed = True
            self._copies.clear()

    def __enter__(self) -> StateDictStager:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()
