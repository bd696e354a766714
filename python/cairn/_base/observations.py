"""`Observers`: the functions that learn what a store does.

1. A call of the store runs. Its exception, if any, is not changed.
2. The event is made: from the report or the error, and for saves from the records of the new step.
3. Each observer is called with it. An exception of an observer is logged once and ignored.

For a save in the background, steps 2 and 3 run on a thread that waits for the save. For a copy to a
mirror, they run on the thread of the mirror (`cairn._mirror.worker`). SystemExit and
KeyboardInterrupt are not ignored on the main thread, where Ctrl-C may arrive in an observer.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cairn import _cairn
from cairn._base.addresses import canonical_address, is_directory
from cairn.errors import Error

# Some are used by the store while an event is made: after a save, an import must not fail.
from cairn.reports import (  # noqa: F401
    StepHealth,
    StepInfo,
    StoreEvent,
    TensorStatistics,
)

_MAX_NAMES = 10  # of tensors in StepHealth

_log = logging.getLogger("cairn")


class _Call(NamedTuple):
    """A call that has ended, or continues in the background."""

    kind: str
    store: Any
    step: int | None
    has_statistics: bool
    begin: float
    repeated: int | None  # requests before the call
    stall_seconds: float
    in_background: bool


class Observers:
    """The observers of one store. Threads: all methods may be called from any thread."""

    def __init__(self) -> None:
        self._observers: tuple[Callable[[StoreEvent], object], ...] = ()
        self._failed: set[int] = set()  # indices of the observers that have raised
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()  # guards the fields above
        self._pid = os.getpid()

    def add(self, observer: Callable[[StoreEvent], object]) -> None:
        with self._lock:
            self._observers = (*self._observers, observer)

    def run(
        self,
        kind: str,
        method: Callable[..., Any],
        store: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        in_background: bool,
    ) -> Any:
        """Makes the call and reports it. Returns and raises what the call does."""
        begin, repeated = time.monotonic(), repeated_requests(store.address)
        step = args[0] if kind == "save" and args else kwargs.get("step")

        def ended() -> _Call:
            known = step if isinstance(step, int) else None
            has_statistics = kind == "save" and getattr(kwargs.get("tuning"), "statistics", False)
            stall = time.monotonic() - begin
            return _Call(kind, store, known, has_statistics, begin, repeated, stall, in_background)

        try:
            result = method(store, *args, **kwargs)
        except Exception as error:
            self._report(ended(), None, error)
            raise
        if in_background:
            self._follow(ended(), result.native)
            return result
        if kind == "save":
            call = ended()  # before the wait
            self.wait()  # the save before it has ended, and is reported first
            self._report(call, result, None)
        else:
            self._report(ended(), result, None)
        return result

    def wait(self) -> None:
        """Waits until the events of all background saves are reported. In an observer, and in a
        forked child, it does not wait."""
        if self._pid != os.getpid():
            return
        with self._lock:
            threads = list(self._threads)
        if threading.current_thread() not in threads:
            for thread in threads:
                thread.join()

    def _follow(self, call: _Call, save: Any) -> None:
        def follow() -> None:
            report, error = None, None
            try:
                save.wait(None)
                report = save.report()
            except Exception as raised:
                error = raised
            seconds = time.monotonic() - call.begin
            for thread in earlier:
                thread.join()
            self._report(call, report, error, seconds)

        thread = threading.Thread(target=follow, name="cairn-observers", daemon=True)
        with self._lock:
            earlier = [one for one in self._threads if one.is_alive()]
            try:
                thread.start()
            except RuntimeError:  # no thread can start: reported here, before the call returns
                pass
            else:
                self._threads = [*earlier, thread]
                return
        follow()

    def _report(
        self, call: _Call, report: Any, error: Exception | None, seconds: float | None = None
    ) -> None:
        """``seconds``: of a save in the background, until it was durable."""
        store = call.store
        repeated = repeated_requests(store.address)
        step = getattr(report, "step", call.step)
        info = None
        if call.kind == "save" and error is None:
            info = _info_of(store, step)
        event = StoreEvent(
            kind=call.kind,
            address=canonical_address(store.address),
            rank=store.rank,
            world_size=store.world_size,
            step=step,
            unix_ns=time.time_ns(),
            seconds=call.stall_seconds if seconds is None else seconds,
            stall_seconds=call.stall_seconds,
            in_background=call.in_background,
            report=report,
            error=error,
            info=info,
            health=_health_of(store, step) if info is not None and call.has_statistics else None,
            free_bytes=free_bytes(store.address),
            retries=None if repeated is None else repeated - (call.repeated or 0),
        )
        self.report(event)

    def report(self, event: StoreEvent) -> None:
        """Calls the observers."""
        for index, observer in enumerate(self._observers):
            try:
                observer(event)
            except BaseException as error:
                is_main = threading.current_thread() is threading.main_thread()
                if is_main and not isinstance(error, Exception):
                    raise
                with self._lock:
                    is_first = index not in self._failed
                    self._failed.add(index)
                if is_first:
                    _log.exception(
                        "the observer %r failed; later errors of it are not logged", observer
                    )


def _info_of(store: Any, step: int) -> StepInfo | None:
    """None if the step was deleted in the meantime, by the policy of the store for example, or if
    the store cannot be read any more."""
    try:
        return store.step_info(step)
    except Error:
        return None


def _health_of(store: Any, step: int) -> StepHealth | None:
    """From the recorded statistics, which rank 0 reads for all ranks."""
    if store.rank > 0:
        return None
    try:
        found = store.statistics(step)
    except Error:
        return None
    bad = [fqn for fqn, one in found.items() if one.nans or one.infs]
    return StepHealth(
        sum(one.nans for one in found.values()),
        sum(one.infs for one in found.values()),
        len(found),
        tuple(bad[:_MAX_NAMES]),
    )


def repeated_requests(address: str) -> int | None:
    """Requests to the bucket at an address that this process has sent again so far; None for stores
    elsewhere."""
    return _cairn.repeated_requests(address) if address.startswith("s3:") else None


def free_bytes(address: str) -> int | None:
    """Free space of the file system of a store in a directory; None for other stores."""
    if not is_directory(address):
        return None
    try:
        found = os.statvfs(canonical_address(address))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
