"""`MirroredSaves`: the mirrors of a `Store`.

Several mirrors form a chain, each of which copies from the one before it. Each has a worker.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from cairn import _cairn
from cairn._base.addresses import canonical_address
from cairn._base.open_options import OpenOptions
from cairn._mirror.replica import MirrorJob, Source, is_reported, mark_reported
from cairn.errors import Unavailable

if TYPE_CHECKING:
    from cairn._base.observations import Observers
    from cairn._mirror.options import Mirror
    from cairn._mirror.replica import Copied
    from cairn._mirror.worker import CopyClock, MirrorWorker
    from cairn.reports import MirrorStatus

_SLICE_SECONDS = 0.1  # between reports of progress


class MirroredSaves:
    """The mirrors to which a store has copied steps, by their addresses. Only rank 0 copies.

    Threads: all methods may be called from any thread. In a forked child they do nothing.
    """

    def __init__(
        self, address: str, options: OpenOptions, uuid: str, rank: int = 0, world_size: int = 1
    ) -> None:
        self._source = Source(address, options.credentials, uuid)
        self._rank = rank
        self._world_size = world_size
        self._observers: Observers | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._known: dict[tuple[str, ...], tuple[Mirror, ...]] = {}
        self._chains: dict[tuple[str, ...], list[MirrorWorker]] = {}

    @property
    def uuid(self) -> str | None:
        """The identity of the store."""
        return self._source.uuid

    def observe(self, observers: Observers) -> None:
        """The observers learn of each copy from now on."""
        self._observers = observers

    def _report(self, clock: CopyClock, end: Copied | Exception) -> None:
        """Informs the observers of a copy that has ended."""
        if self._observers is not None:
            event = clock.event(self._source.address, self._world_size, end)
            self._observers.report(event)

    def submit(
        self,
        step: int,
        mirrors: tuple[Mirror, ...],
        save: _cairn.SaveHandle | None,
        overwrite: bool,
    ) -> MirrorJob | None:
        """Copies a step to the mirrors whose ``every`` divides it, once ``save`` is durable.

        Returns None if no mirror receives the step. Raises Invalid if a mirror exists with other
        options.
        """
        workers = self._chain(mirrors)
        for worker in workers:
            worker.begin()
        count = sum(step % mirror.every == 0 for mirror in mirrors)
        if not workers or count == 0:
            return None
        job = MirrorJob(step, count, save=save, overwrite=overwrite)
        workers[0].submit(job)
        return job

    def check(self, mirrors: tuple[Mirror, ...]) -> None:
        """Raises Invalid if one of the mirrors exists with other options."""
        self._chain(mirrors)

    def catch_up(self, steps: Iterable[int], mirrors: tuple[Mirror, ...]) -> None:
        """Copies steps of the store that an earlier process has saved, if they are newer than all
        steps of the mirror; then the same for each mirror and the next one."""
        if workers := self._chain(mirrors):
            workers[0].catch_up(sorted(steps), list(mirrors))

    def pinned(self) -> set[int]:
        """The steps that must not be pruned, because they wait for a copy."""
        return set().union(*(workers[0].pinned() for workers in self._all_chains()))

    def begin_close(self) -> None:
        """No more steps are submitted. The wait for those that wait then ends in time even if the
        storage of a mirror has failed."""
        for worker in self._workers():
            worker.begin_close()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until no step waits for a copy. Returns False after ``timeout`` seconds. In an
        observer of a copy it does not wait. Reports the progress of the copies. Raises Unavailable
        if the caller asks to stop the wait."""

        def wait(left: float | None) -> bool:
            return all(_wait_for_chain(workers, left) for workers in self._all_chains())

        return self._wait(wait, timeout)

    def wait_for_all(self, timeout: float | None) -> None:
        """See `Store.wait_mirrored`."""
        if not self.wait(timeout):
            raise TimeoutError(
                f"steps are not in their mirrors after {timeout} s: mirror_status() states why"
            )
        self.raise_error()

    def wait_for(self, job: MirrorJob, timeout: float | None) -> bool:
        """Waits for the copies of one step, and raises their error; otherwise as `wait`."""
        if not self._wait(job.ended.wait, timeout):
            return False
        if job.error is not None:
            mark_reported(job.error)
            raise job.error
        return True

    def _wait(self, wait: Callable[[float | None], bool], timeout: float | None) -> bool:
        if self._pid != os.getpid() or not self._chains:
            return wait(timeout)
        from cairn._base.progress import is_followed

        if not is_followed():
            return wait(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_SECONDS
            if deadline is not None:
                left = min(left, max(0.0, deadline - time.monotonic()))
            if wait(left):
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._report_progress()

    def _report_progress(self) -> None:
        active = [one for one in self.status() if one.step is not None and one.total_bytes > 0]
        done = sum(one.copied_bytes for one in active)
        total = sum(one.total_bytes for one in active)
        if active and not _cairn.report_progress(done, total):
            raise Unavailable(
                "the wait was stopped, because progress= returned False; the copies continue"
            )

    def raise_error(self) -> None:
        """Raises why the newest step is not in a mirror, if it is not."""
        for error in self._errors():
            mark_reported(error)
            raise error

    def status(self) -> list[MirrorStatus]:
        return [worker.status() for worker in self._workers()]

    def close(self, *, failed: bool = False, interrupted: bool = False) -> None:
        """Waits for the copies, ends the threads, and raises the error of the newest step unless
        it was raised before.

        ``failed``: a copy that fails is not repeated. ``interrupted``: nothing is waited for.
        """
        workers = self._workers()
        try:
            for worker in workers:
                worker.begin_close()
                if failed:
                    worker.end_retries()
            if not interrupted:
                self.wait()
        finally:
            for worker in workers:
                worker.stop()
            errors = list(self._errors())
            with self._lock:
                self._chains.clear()
        for error in errors:
            if not is_reported(error):
                raise error

    def _all_chains(self) -> list[list[MirrorWorker]]:
        if self._pid != os.getpid():
            return []
        with self._lock:
            return list(self._chains.values())

    def _workers(self) -> list[MirrorWorker]:
        return [worker for workers in self._all_chains() for worker in workers]

    def _errors(self) -> Iterator[Exception]:
        """Why the newest step is not in a mirror: the first error of each chain that has one."""
        for workers in self._all_chains():
            errors = (error for worker in workers if (error := worker.error()) is not None)
            yield from itertools.islice(errors, 1)

    def _chain(self, mirrors: tuple[Mirror, ...]) -> list[MirrorWorker]:
        """The workers, from near to far; none on ranks other than 0."""
        if not mirrors or self._pid != os.getpid():
            return []
        import dataclasses

        import cairn._base.progress  # noqa: F401 - now, because a step that waits for it is durable
        from cairn._mirror.options import check_same
        from cairn._mirror.worker import workers_of

        credentials = self._source.credentials
        mirrors = tuple(
            dataclasses.replace(mirror, credentials=mirror.credentials or credentials)
            for mirror in mirrors
        )
        key = tuple(canonical_address(str(mirror)) for mirror in mirrors)
        with self._lock:
            # On all ranks, because they must agree on errors.
            check_same(self._known.setdefault(key, mirrors), mirrors)
            if self._rank == 0 and key not in self._chains:
                self._chains[key] = workers_of(self._source, mirrors, self._report)
            return self._chains.get(key, [])


def _wait_for_chain(workers: list[MirrorWorker], timeout: float | None) -> bool:
    # An observer, which runs on the thread of a mirror, may close the store.
    if any(worker.is_current_thread() for worker in workers):
        return True
    # In this order, because a worker submits a step to the next one before it is done.
    return all(worker.wait(timeout) for worker in workers)
