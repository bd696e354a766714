"""Checks of mapped tensors that run in the background: ``read(mmap=True, verify="lazy")``."""

from __future__ import annotations

import threading
import time
import warnings

from cairn import _cairn
from cairn.errors import Error, Unavailable


class MapChecks:
    """The checks of one store. An error is reported twice: by a warning when it is found, and by
    the next call of the store that reads, saves or closes.

    Threads: all methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._errors: list[Error] = []

    def start(self, check: _cairn.MapCheck) -> None:
        """Runs a check on a new thread."""
        # At the end of the process, the store is closed, which waits for the thread.
        thread = threading.Thread(target=self._run, args=(check,), name="cairn-check", daemon=True)
        with self._lock:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
            thread.start()

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
            threads = list(self._threads)
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        self.raise_found()
        return not any(thread.is_alive() for thread in threads)

    def _run(self, check: _cairn.MapCheck) -> None:
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
