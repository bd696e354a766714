"""`cairn.copy_steps`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from cairn._base.steps import step_number
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn.reports import CopiedStep
    from cairn.store import Store


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
    that is such a copy is unchanged. A copy that was interrupted continues with the segments that
    it had finished, if the same step is copied again within a day.

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
    from cairn.reports import CopiedStep

    if max_rate is not None and operator.index(max_rate) < 1:
        raise Invalid(f"max_rate={max_rate}: must be 1 or more")
    numbers = source._local_steps() if steps is None else [step_number(step) for step in steps]
    with ExitStack() as stack:
        if progress is None and target._progress is True:
            progress = True
        if progress is True:
            from cairn._base.progress import StepDisplay

            progress = stack.enter_context(StepDisplay("copying step"))
        copied = target._native.copy_from(
            source._native,
            progress or None,
            steps=numbers,
            overwrite=overwrite,
            max_bytes_per_second=max_rate,
        )
    return tuple(CopiedStep(*one) for one in copied)
