"""Signals that ask the process to end: recorded now, delivered later."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any

from cairn.errors import Invalid


class SignalWatch:
    """Records signals, and delivers them to the previous handler when the owner asks for it.

    A repeated signal has no effect before that: schedulers and launchers often send it twice. In a
    process forked from this one, and after `restore`, signals have their previous effect.

    Threads: the main thread only, as Python requires for signal handlers.

    Raises:
        Invalid: not in the main thread, or a signal that cannot be caught.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._pid = os.getpid()
        self.pending = 0
        """Number of the recorded signal, 0 for none."""
        self._restored = False
        self._ending = False
        self._previous: dict[int, Any] = {}
        numbers = [int(number) for number in signals]
        if numbers and threading.current_thread() is not threading.main_thread():
            raise Invalid(
                "signals can be watched from the main thread only: create the Saver there, or pass "
                "signals=()"
            )
        try:
            for number in numbers:
                self._previous[number] = signal.signal(number, self._note)
        except (OSError, ValueError) as error:
            self.restore()
            raise Invalid(f"signals={numbers}: {number} cannot be watched ({error})") from error

    def follow(self, number: int) -> None:
        """Delivers signal `number`: calls the previous handler. If the previous handler is the
        default, which ends the process, raises SystemExit(128 + number), so that files and stores
        are closed. Returns if the signal was ignored, or if its handler returns."""
        self.pending = 0
        previous = self._previous.get(number, signal.SIG_DFL)
        if callable(previous):
            previous(number, None)
        elif previous != signal.SIG_IGN:
            self._ending = True
            raise SystemExit(128 + number)

    def restore(self) -> None:
        """Restores the previous handler of each signal. May be called again."""
        if os.getpid() != self._pid or self._restored:
            return
        self._restored = True
        for number, previous in self._previous.items():
            # None is a handler that Python did not install and cannot restore. A handler that was
            # installed after ours remains.
            if previous is not None and signal.getsignal(number) == self._note:
                signal.signal(number, previous)

    def _note(self, number: int, frame: Any) -> None:
        # Others that put back the handlers that they found call this after the end of the watch.
        if os.getpid() != self._pid or self._restored:
            previous = self._previous.get(number)
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
            signal.raise_signal(number)
        elif not self.pending and not self._ending:
            self.pending = number
