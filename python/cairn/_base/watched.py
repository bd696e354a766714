"""`watched`: calls of a store that report to observers what they did, and show their progress."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cairn._base.progress import Progress

_Method = TypeVar("_Method", bound=Callable[..., Any])


def shown(progress: Progress, task: str, rank: int, unit: str = "") -> AbstractContextManager[None]:
    """`cairn._base.progress.showing`, which calls without progress do not import."""
    if not progress:
        return nullcontext()
    from cairn._base.progress import showing

    return showing(progress, task, rank, unit)


def watched(
    task: str, event: str = "", *, in_background: bool = False, unit: str = ""
) -> Callable[[_Method], _Method]:
    """Decorates a method of a store. The decorator handles its keyword argument ``progress``.

    Args:
        task: what the line of the progress begins with, such as ``"loading"``; empty: none.
        event: the kind of the event that observers receive; empty: none.
        in_background: the method returns a handle, and receives ``progress`` for it.
        unit: what the progress counts; empty: bytes.
    """

    def decorate(method: _Method) -> _Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
            follow = (self.opened.progress if progress is None else progress) if task else False
            observers = self.opened.observers if event else None
            if in_background:
                kwargs["progress"] = follow
            if not follow and observers is None:
                return method(self, *args, **kwargs)
            with shown(follow, task, self.rank, unit):
                if observers is None:
                    return method(self, *args, **kwargs)
                return observers.run(event, method, self, args, kwargs, in_background)

        return call  # type: ignore[return-value]

    return decorate
