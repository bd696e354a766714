"""`MirrorJob`: one step on its way through a chain of mirrors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cairn import _cairn

if TYPE_CHECKING:
    from concurrent.futures import Future


def mark_reported(error: BaseException) -> None:
    """Records that the caller knows the error, so that closing the store does not raise it."""
    error._is_reported = True  # type: ignore[attr-defined]


def is_reported(error: BaseException) -> bool:
    return getattr(error, "_is_reported", False)


class MirrorJob:
    """A step that is to be copied to one mirror after the other.

    Threads: one worker at a time has the job. The futures may be waited for on any thread.

    Args:
        step: its number.
        save: the save of the step if it may still run; the first worker waits for it.
        mirror_count: number of mirrors that the step is copied to.
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
        from concurrent.futures import Future

        self.step = step
        self.save = save
        self.overwrite = overwrite
        self.is_catch_up = is_catch_up
        self.error: Exception | None = None
        self.futures: list[Future[None]] = [Future() for _ in range(mirror_count)]
        """One per mirror, from near to far."""
        self._done = 0

    @property
    def is_for_next(self) -> bool:
        """Whether there are mirrors that lack the step."""
        return self.error is None and self._done < len(self.futures)

    def complete(self) -> None:
        """The step is in the mirror that it was copied to."""
        self._done += 1
        self.futures[self._done - 1].set_result(None)

    def fail(self, error: Exception) -> None:
        """The step does not arrive in this mirror, nor in mirrors after it."""
        if self.error is None:
            self.error = error
        for future in self.futures[self._done :]:
            if not future.done():
                future.set_exception(error)
