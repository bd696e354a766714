"""Signals that ask the process to end, noted now and given their course later."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import Any

from cairn.errors import Invalid


class SignalWatch:
    """Notes signals instead of following them, until their course is asked for.

    A signal that comes again before that changes nothing: schedulers and launchers often send it
    twice. A process forked from this one has no watch, and its signals do what they did before.

    Threads: the main one, as Python's signal handlers are its alone.

    Raises:
        Invalid: not in the main thread, or a signal that cannot be caught.
    """

    def __init__(self, signals: Iterable[int]) -> None:
        self._pid = os.getpid()
        self._pending = 0
        self._restored = False
        self._ending = False
        self._previous: dict[int, Any] = {}
        numbers = [int(number) for number in signals]
        if numbers and threading.current_thread() is not threading.main_thread():
            raise Invalid(
                "signals can be watched from the main thread only: make the Saver there, or pass "
                "signals=()"
            )
        try:
            for number in numbers:
                self._previous[number] = signal.signal(number, self._note)
        except (OSError, ValueError) as error:
            self.restore()
            raise Invalid(f"signals={numbers}: {number} cannot be watched ({error})") from error

    @property
    def pending(self) -> int:
        """Number of the signal that came, 0 for none."""
        return self._pending

    def follow(self, number: int) -> None:
        """Does what signal `number` would have done: calls the handler that there was before.

        Where that is the default, which ends the process: raises SystemExit(128 + number), so that
        it ends with everything closed. Returns if the signal was ignored, or its handler returns.
        """
        self._pending = 0
        previous = self._previous.get(number, signal.SIG_DFL)
        if callable(previous):
            previous(number, None)
        elif previous != signal.SIG_IGN:
            self._ending = True
            raise SystemExit(128 + number)

    def restore(self) -> None:
        """Gives each signal the handler that it had. May be called again."""
        if os.getpid() != self._pid or self._restored:
            return
        self._restored = True
        for number, previous in self._previous.items():
            # None: a handler that is not Python's, which cannot be put back. And one that was set
            # after ours stays.
            if previous is not None and signal.getsignal(number) == self._note:
                signal.signal(number, previous)

    def _note(self, number: int, frame: Any) -> None:
        if os.getpid() != self._pid:
            previous = self._previous.get(number)
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
            signal.raise_signal(number)
        elif not self._pending and not self._ending:
            self._pending = number
