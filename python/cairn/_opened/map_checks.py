"""Checks of mapped tensors that run in the background: ``read(mmap=True, verify="lazy")``."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable

from cairn import _cairn
from cairn.errors import Error, Unavailable


class MapChecks:
    """The checks of one store. They run with the lowest priority, because the program uses what is
    mapped. When a thread waits for them, another one with its priority takes part. An error is
    reported twice: by a warning when it is found, and by the next call of the store that reads,
    saves or closes.

    Threads: all methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._alone: list[tuple[threading.Thread, _cairn.MapCheck]] = []
        """The checks for which nobody has waited, and their threads."""
        self._errors: list[Error] = []

    def start(self, check: _cairn.MapCheck) -> None:
        """Runs a check on a new thread."""
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._alone = [one for one in self._alone if one[0].is_alive()]
            self._alone.append((self._start(self._run, check), check))

    def _start(self, run: Callable[..., None], check: _cairn.MapCheck) -> threading.Thread:
        # At the end of the process, the store is closed, which waits for the thread.
        thread = threading.Thread(target=run, args=(check,), name="cairn-check", daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def raise_found(self) -> None:
        """Raises the first error that was found since the last call."""
        if not self._errors:  # without the lock: for calls that read small tensors
            return
        with self._lock:
            errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for all checks, and returns whether they have ended; raises as `raise_found`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            alone, self._alone = self._alone, []
            for thread, check in alone:
                if thread.is_alive():
                    self._start(_take_part, check)
            threads = list(self._threads)
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.raise_found()
        return not any(thread.is_alive() for thread in threads)

    def _run(self, check: _cairn.MapCheck) -> None:
        with contextlib.suppress(OSError):
            # Threads that it starts have it, too. SCHED_IDLE takes far longer on a busy machine.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            check.run()
        except Error as error:
            self._found(error, f"a mapped tensor is damaged: {error}")
        except BaseException as error:  # no memory, for example
            text = f"mapped tensors were not checked: {error!r}"
            self._found(Unavailable(text), text)

    def _found(self, error: Error, text: str) -> None:
        with self._lock:
            self._errors.append(error)
        warnings.warn(text, RuntimeWarning)


def _take_part(check: _cairn.MapCheck) -> None:
    with contextlib.suppress(Exception):  # the thread that began the check reports what it finds
        check.run()
