"""`MirrorChain`: a store's mirrors, each of which copies from the one before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from concurrent.futures import Future

from cairn import _cairn
from cairn._mirror.events import CopyEvents
from cairn._mirror.job import MirrorJob
from cairn._mirror.options import Mirror
from cairn._mirror.replica import Source
from cairn._mirror.worker import MirrorWorker
from cairn.errors import Invalid
from cairn.reports import MirrorStatus


def check_same(known: tuple[Mirror, ...], mirrors: tuple[Mirror, ...]) -> None:
    """Raises Invalid if these are the same stores with other options. ``every`` may differ."""
    for old, new in zip(known, mirrors):
        if dataclasses.replace(new, every=old.every, address=old.address) != old:
            raise Invalid(f"mirror {new}: the store already has this mirror with other options")


class MirrorChain:
    """One worker for each mirror of a store.

    Threads: all methods may be called from any thread. After a fork, the child must not call them.
    """

    def __init__(self, source: Source, mirrors: tuple[Mirror, ...], events: CopyEvents) -> None:
        """``mirrors``: from near to far, at least one."""
        self._workers: list[MirrorWorker] = []
        for i in reversed(range(len(mirrors))):
            near = Source(str(mirrors[i - 1]), mirrors[i - 1].credentials) if i > 0 else source
            following = self._workers[0] if self._workers else None
            self._workers.insert(0, MirrorWorker(near, mirrors[i], following, events, i + 1))

    def submit(
        self,
        step: int,
        mirrors: tuple[Mirror, ...],
        save: _cairn.SaveHandle | None,
        overwrite: bool,
    ) -> list[Future[None]]:
        """Copies a step to the mirrors whose ``every`` divides it.

        Returns one future per mirror that receives the step, from near to far. Each has the result
        None, or the error of the copy.
        """
        count = sum(step % mirror.every == 0 for mirror in mirrors)
        job = MirrorJob(step, count, save=save, overwrite=overwrite)
        for worker in self._workers:
            worker.begin()
        if count > 0:
            self._workers[0].submit(job)
        return job.futures

    def catch_up(self, steps: Iterable[int], mirrors: tuple[Mirror, ...]) -> None:
        """Copies steps of the store that an earlier process has saved, if they are newer than all
        steps of the mirror; then the same for each mirror and the next one."""
        self._workers[0].catch_up(sorted(steps), list(mirrors))

    def pinned(self) -> set[int]:
        """The steps of the store that must not be pruned."""
        return self._workers[0].pinned()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until no step waits for a copy. Returns False after ``timeout`` seconds. In an
        observer of a copy it does not wait."""
        # An observer, which runs on the thread of a mirror, may close the store.
        if any(worker.is_current_thread() for worker in self._workers):
            return True
        # In this order, because a worker submits a step to the next one before it is done.
        return all(worker.wait(timeout) for worker in self._workers)

    def error(self) -> Exception | None:
        """Why the newest step is not in one of the mirrors; None if it is, or may be."""
        return next((error for worker in self._workers if (error := worker.error())), None)

    def status(self) -> list[MirrorStatus]:
        return [worker.status() for worker in self._workers]

    def begin_close(self) -> None:
        """No more steps are submitted. The wait for those that wait then ends in time even if the
        storage of a mirror has failed."""
        for worker in self._workers:
            worker.begin_close()

    def end_retries(self) -> None:
        """From now on, a copy that fails is not repeated."""
        for worker in self._workers:
            worker.end_retries()

    def stop(self) -> None:
        """Ends the copies and the threads."""
        for worker in self._workers:
            worker.stop()
