"""`MirrorJob`: one step on its way through a chain of mirrors."""

from __future__ import annotations

import threading

from cairn import _cairn


def mark_reported(error: BaseException) -> None:
    """Records that the caller knows the error, so that closing the store does not raise it."""
    error._is_reported = True  # type: ignore[attr-defined]


def is_reported(error: BaseException) -> bool:
    return getattr(error, "_is_reported", False)


class MirrorJob:
    """A step that is to be copied to one mirror after the other.

    Threads: one worker at a time has the job. Any thread may wait until it has `ended`.

    Args:
        step: its number.
        mirror_count: number of mirrors that the step is copied to.
        save: the save of the step if it may still run; the first worker waits for it.
        overwrite: whether the copy may replace another step with this number.
        is_catch_up: the step was saved by an earlier process. It is copied only if it is newer
            than all steps of the mirror.
    """

    def __init__(
        self,
        step: int,
        mirror_count: int,
        *,
        save: _cairn.SaveHandle | None = None,
        overwrite: bool = False,
        is_catch_up: bool = False,
    ) -> None:
        self.step = step
        self.save = save
        self.overwrite = overwrite
        self.is_catch_up = is_catch_up
        self.error: Exception | None = None
        self.ended = threading.Event()
        """Set once all mirrors have the step, or after the `error`."""
        self._left = mirror_count

    @property
    def is_for_next(self) -> bool:
        """Whether there are mirrors that lack the step."""
        return not self.ended.is_set()

    def complete(self) -> None:
        """The step is in the mirror that it was copied to."""
        self._left -= 1
        if self._left == 0:
            self.ended.set()

    def fail(self, error: Exception) -> None:
        """The step does not arrive in this mirror, nor in mirrors after it."""
        if self.error is None:
            self.error = error
        self.ended.set()
