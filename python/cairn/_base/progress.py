"""Progress of long calls: a bar of tqdm if it is installed, otherwise one line, on standard error.

Nothing is shown in the first second, on ranks other than 0, or if standard error is not a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from cairn import _cairn
from cairn._base.closing import Closing

Progress = bool | Callable[[int, int], object]
"""``True`` shows the progress on rank 0. A function is called on each rank that makes the call with
the bytes that are done and those in all (0: not known), at most ten times per second, on the
calling thread. Returning False cancels the call, which raises Unavailable; an exception of it is
raised by the call."""

_QUIET_SECONDS = 1.0
_INTERVAL_SECONDS = 0.1
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Display(Closing):
    """Shows the progress of one task. Threads: one at a time.

    Args:
        unit: what is counted; empty: bytes.
    """

    def __init__(self, task: str, unit: str = "") -> None:
        self._task = task
        self._unit = unit
        self._is_shown = is_terminal()
        self._begin = time.monotonic()
        self._step: int | None = None
        self._first: tuple[float, int, int] | None = None  # time, bytes and total of an update
        self._bar: Any = None
        self._has_line = False

    def update(self, done: int, total: int) -> None:
        """Draws the progress. A smaller ``done`` or another ``total`` begins a new phase. A
        ``total`` of 0 is not known."""
        if not self._is_shown:
            return
        now = time.monotonic()
        if self._first is None or total != self._first[2] or done < self._first[1]:
            self._first = (now, done, total)
            self.clear()
        if now - self._begin < _QUIET_SECONDS:
            return
        task = self._task if self._step is None else f"{self._task} {self._step}"
        if self._bar is None and not self._has_line:
            self._bar = _tqdm_bar(task, self._unit, done, total)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)
            return
        new, seconds = done - self._first[1], now - self._first[0]
        text = progress_text(task, done, total, new, seconds, self._unit)
        sys.stderr.write("\r\033[K" + text)
        sys.stderr.flush()
        self._has_line = True

    def update_step(self, step: int, done: int, total: int) -> None:
        """Draws the progress of one step after the other, as `progress` of `copy_steps`."""
        if step != self._step:
            self.clear()
            self._step, self._first = step, None
        self.update(done, total)

    def clear(self) -> None:
        """Removes what is drawn."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._has_line:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
            self._has_line = False

    close = clear


class StreamDisplay:
    """The progress of a step that is written in portions, whose number is not known.

    Threads: one at a time, possibly another one for each portion.
    """

    def __init__(self, progress: Progress, task: str, rank: int) -> None:
        self._function, self._display = _follower(progress, task, rank)
        self._done = 0
        self._last = time.monotonic()

    def portion(self) -> AbstractContextManager[None]:
        """Around the call that writes a portion."""
        return nullcontext() if self._function is None else _reporting_to(self._report)

    def add(self, written: int) -> bool:
        """After a portion of this many bytes. Returns False if the function has returned False."""
        self._done += written
        if self._function is None or time.monotonic() - self._last < _INTERVAL_SECONDS:
            return True
        return self._report(0, 0) is not False

    def clear(self) -> None:
        if self._display is not None:
            self._display.clear()

    def _report(self, done: int, total: int) -> object:
        self._last = time.monotonic()
        return self._function is None or self._function(self._done + done, 0)


@contextmanager
def showing(progress: Progress, task: str, rank: int, unit: str = "") -> Iterator[None]:
    """Long calls of this thread report to ``progress`` inside the block."""
    function, display = _follower(progress, task, rank, unit)
    with ExitStack() as stack:
        if display is not None:
            stack.enter_context(display)
        if function is not None:
            stack.enter_context(_reporting_to(function))
        yield


def _follower(
    progress: Progress, task: str, rank: int, unit: str = ""
) -> tuple[Callable[[int, int], object] | None, Display | None]:
    """The function to report to, and what it draws on; None where there is none."""
    if callable(progress):
        return progress, None
    if not progress or rank > 0 or not is_terminal():
        return None, None
    display = Display(task, unit)
    return display.update, display


@contextmanager
def _reporting_to(function: Callable[[int, int], object]) -> Iterator[None]:
    previous = _cairn.set_progress(function)
    try:
        yield
    finally:
        _cairn.set_progress(previous)


def is_followed() -> bool:
    """Whether long calls of this thread report to a function."""
    function = _cairn.set_progress(None)
    _cairn.set_progress(function)
    return function is not None


def is_terminal() -> bool:
    """Whether progress can be shown. Standard error may be None, or closed."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def progress_text(
    task: str, done: int, total: int, new: int, seconds: float, unit: str = ""
) -> str:
    """One line. The rate is ``new`` bytes (or ``unit``) per ``seconds``, and left out at the
    beginning."""

    def counted(count: int) -> str:
        return f"{count:,}" if unit else amount(count)

    text = f"{task} {counted(done)}"
    if total > 0:
        text += f" of {counted(total)} ({100 * done / total:.1f} %)"
    if seconds > 0.5 and new > 0:
        text += f"  {counted(round(new / seconds))}/s"
        if total > 0:
            text += f"  {_duration(round(seconds * max(0, total - done) / new))} left"
    return text


def amount(size: int) -> str:
    """A number of bytes with three digits, as the programs print it."""
    value, unit = float(size), 0
    while value >= 1023.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{size} B" if size < 1024 else three_digits(value, _UNITS[unit])


def three_digits(value: float, unit: str) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"


def _duration(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def _tqdm_bar(task: str, unit: str, done: int, total: int) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    counted = {"unit": f" {unit}"} if unit else {"unit": "B", "unit_divisor": 1024}
    return tqdm(
        desc=task, total=total or None, initial=done, unit_scale=True, file=sys.stderr,
        leave=False, dynamic_ncols=True, **counted,
    )
