"""Copies of steps between stores."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cairn._base.addresses import step_number
from cairn._opened.opened import Opened
from cairn.errors import Conflict, Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn.reports import CopiedStep
    from cairn.store import Store


def fork(
    source: Opened, target: Opened, step: int, into: int | None, overwrite: bool, progress: Progress
) -> None:
    """See `Store.fork`, into another store."""
    source.wait_for_last_save()
    target.wait_for_last_save()
    follow: Any = progress
    if callable(progress):
        follow = lambda _, done, total: progress(done, total)  # noqa: E731 - not the step
    number = None if into is None else step_number(into)
    copied = _copy(source, target, follow, steps=[step], into=number, overwrite=overwrite)
    if copied[0].outcome == "deleted":
        raise Conflict(f"step {step} was deleted during the copy")


def copy_steps(
    source: Store,
    target: Store,
    steps: Iterable[int] | None = None,
    *,
    overwrite: bool = False,
    max_rate: int | None = None,
    progress: bool | Callable[[int, int, int], object] | None = None,
) -> tuple[CopiedStep, ...]:
    """Copies steps from one store to another, in ascending order, each with one commit.

    Only segments that the target lacks are transferred, and every page is verified before it is
    written. A copy has the number, the time and the contents of its source; a step of the target
    that is such a copy is left as it is. A copy that was interrupted continues with the segments
    that it had finished, if the same step is copied again within a day.

    In a multi-rank store one rank makes this call, rank 0 for a target, and no rank saves to the
    target at the same time. The source may be in use. The target cannot begin a save during the
    copy. Ctrl-C ends it.

    Args:
        source: open in any mode.
        target: open with mode ``"a"``.
        steps: numbers of the steps; by default all steps of the source.
        overwrite: replaces steps of the target that have the same number and other contents.
        max_rate: limit in bytes of payload per second; by default there is none.
        progress: ``True`` shows the progress of each step, as in :func:`cairn.open`; by default, if
            the target was opened with ``progress=True``. A function is
            called with the step, the bytes of it that were copied, and those to be copied in all,
            at most every 100 ms and possibly on other threads. Returning False stops the copy.

    Returns:
        One report per step, in ascending order.

    Raises:
        NotFound: the source has no such step; nothing was copied.
        Conflict: the target has a step with the same number and other contents, another process has
            taken over the target, or another thread has changed it during the copy.
        Corrupt: the source is damaged.
        Invalid: the target is open for reading, or a save of it is running; a number is out of
            range.
        Unavailable: a storage failed, or ``progress`` returned False. The steps before this one
            are in the target.
    """
    numbers = source.opened.native.steps() if steps is None else [*map(step_number, steps)]
    if progress is None:
        progress = target.opened.progress is True
    options = {"max_rate": max_rate, "steps": numbers, "overwrite": overwrite}
    return tuple(_copy(source.opened, target.opened, progress, **options))


def _copy(
    source: Opened,
    target: Opened,
    progress: bool | Callable[[int, int, int], object],
    *,
    max_rate: int | None = None,
    **options: Any,
) -> list[CopiedStep]:
    """Copies steps with the options of `_cairn.Store.copy_from`."""
    if max_rate is not None and operator.index(max_rate) < 1:
        raise Invalid(f"max_rate={max_rate}: must be 1 or more")
    with ExitStack() as stack:
        if progress is True:
            from cairn._base.progress import Display

            progress = stack.enter_context(Display("copying step")).update_step
        return target.native.copy_from(
            source.native, progress or None, max_bytes_per_second=max_rate, **options
        )
