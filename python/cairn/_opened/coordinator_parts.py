"""Parts of multi-rank saves that hold a store open for writing in this process.

A front end that drives a save itself, such as cairn.dcp, opens the store on the coordinating rank.
If the save fails on another rank, the front end may never learn of it, and the store stays open.
The part is therefore registered here by the folder of its store, and whoever opens the same store
for writing next closes it first, unless the thread that registered it may still be saving.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

from cairn._base.addresses import canonical_address

THREAD_END_SECONDS = 1.0
"""The thread of a background save ends within this time after its future is done."""

# Reentrant, because the garbage collector may run a part's __del__ on a thread that holds it.
_lock = threading.RLock()
_parts: dict[str, tuple[weakref.ref[Any], threading.Thread]] = {}
"""By folder: the part that holds the store open, and the thread that registered it."""


def register(folder: str, part: Any) -> None:
    """Registers a part with a ``close()`` method for the current thread. Keeps a weak reference."""
    with _lock:
        _parts[folder] = (weakref.ref(part), threading.current_thread())


def unregister(folder: str, part: Any) -> None:
    """Removes a part. Does nothing if another part is registered for the folder."""
    with _lock:
        if folder in _parts and _parts[folder][0]() in (part, None):
            del _parts[folder]


def close_abandoned(address: str) -> None:
    """Closes the part that an earlier save into this store has left open, if there is one.

    Does nothing while the thread of that save is alive: it may still be saving, and then the store
    itself reports the conflict.
    """
    with _lock:
        reference, thread = _parts.get(canonical_address(address), (None, None))
    part = None if reference is None else reference()
    if part is None or thread is None:
        return
    if thread is not threading.current_thread():
        thread.join(THREAD_END_SECONDS)
        if thread.is_alive():
            return
    part.close()


def _forget_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold it
    _lock = threading.RLock()
    _parts.clear()


os.register_at_fork(after_in_child=_forget_in_child)
