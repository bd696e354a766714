"""`watched`: calls of a store that report to observers what they did, and show their progress."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cairn._base.observations import Observers
    from cairn._base.progress import Progress
    from cairn.reports import StoreEvent

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Watched:
    """The part of :class:`cairn.Store` that reports what it does."""

    _progress: Progress = False
    _observers: Observers | None = None

    def observe(self, observer: Callable[[StoreEvent], object]) -> None:
        """Calls ``observer`` with a :class:`cairn.StoreEvent` after each save, load, pull, delete,
        prune, compact and merge of this store object, whether it succeeded or failed, and after
        each copy of a step to a mirror.

        The event of ``save_async`` is reported once the step is durable or the save has failed, by
        a background thread that exists until then; the event of a copy by the thread of the mirror,
        before :meth:`wait_mirrored` returns; all others by the thread that made the call, before
        the call returns. Saves are reported in the order in which they ended. Several observers are
        called in the order in which they were added. :meth:`close` waits for the observers. An
        exception in an observer has no effect on the call that it observes: the first one of each
        observer is logged to the logger ``cairn``. On the main thread, ``SystemExit`` and
        ``KeyboardInterrupt`` leave the call after its work is done.

        Each rank observes its own calls, and rank 0 the copies. docs/monitoring.md has
        observers for several libraries.

        Threads: may be called from any thread. Observers may be called by several threads at once.
        """
        if self._observers is None:
            from cairn._base.observations import Observers

            self._observers = Observers()
            self._observe_mirrors(self._observers)
        self._observers.add(observer)

    def _following(self, task: str, rank: int) -> AbstractContextManager[None]:
        """Shows the progress of what is waited for while the store is closed."""
        if not self._progress:
            return nullcontext()
        from cairn._base.progress import showing, uncancelled

        return showing(uncancelled(self._progress), task, rank)

    def _observe_mirrors(self, observers: Observers) -> None:
        raise NotImplementedError


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
            shown = (self._progress if progress is None else progress) if task else False
            observers = self._observers if event else None
            if in_background:
                kwargs["progress"] = shown
            if not shown and observers is None:
                return method(self, *args, **kwargs)
            with ExitStack() as stack:
                if shown:
                    from cairn._base.progress import showing

                    stack.enter_context(showing(shown, task, self.rank, unit))
                if observers is None:
                    return method(self, *args, **kwargs)
                return observers.run(event, method, self, args, kwargs, in_background)

        return call  # type: ignore[return-value]

    return decorate
