"""`MirrorJob`: one step on its way through a chain of mirrors. `Replica`: the two stores of a
mirror, opened when they are needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from cairn import _cairn
from cairn._base.open_options import Credentials
from cairn.errors import Conflict, Error, NotFound, Unavailable

if TYPE_CHECKING:
    from cairn._mirror.options import Mirror
    from cairn.reports import CopiedStep


class Source(NamedTuple):
    """How the store that is mirrored is opened for reading."""

    address: str
    credentials: Credentials
    uuid: str | None = None
    """Identity of the store that has saved the steps, if it is known: the address may come to mean
    another store."""


class Copied(NamedTuple):
    """A step that the mirror has now."""

    report: CopiedStep
    created_unix_ns: int


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


class Replica:
    """Copies steps from a store to its mirror, and deletes old steps of the mirror.

    The mirror is opened for writing by the first copy and stays open, so that another job is
    refused. After an error both stores are opened again, because the state of a storage that fails
    is not known.

    Threads: one.

    Args:
        progress: is called with (step, copied bytes, total bytes) about ten times per second during
            a copy, on any thread, and returns False to stop the copy.
    """

    def __init__(
        self, source: Source, mirror: Mirror, progress: Callable[[int, int, int], bool]
    ) -> None:
        self._source_place = source
        self._mirror = mirror
        self._progress = progress
        self._source: _cairn.Store | None = None
        self._target: _cairn.Store | None = None
        self._may_take_over = mirror.take_over
        self._is_opening = False

    def copy(self, job: MirrorJob) -> Copied | None:
        """Copies the step of the job, unless the mirror has it. Returns None if the job is to catch
        up, and the mirror has a newer step.

        Raises NotFound if the source does not have it any more, and the errors of
        :func:`cairn.copy_steps`.
        """
        try:
            return self._copy(job)
        except Error:
            self.close()
            raise

    def is_temporary(self, error: Error) -> bool:
        """Whether the copy that has raised the error may succeed later: the storage failed, or
        another process has the mirror open."""
        return isinstance(error, Unavailable) or (isinstance(error, Conflict) and self._is_opening)

    def expect_source(self, uuid: str) -> None:
        """From now on, copies only from the store with this identity."""
        self._source_place = self._source_place._replace(uuid=uuid)

    @property
    def target(self) -> _cairn.Store:
        """The mirror. Requires that a copy has succeeded."""
        assert self._target is not None
        return self._target

    def prune(self, newest: int, pinned: set[int]) -> None:
        """Deletes the steps that the mirror does not keep, except for pinned ones. Requires that a
        copy has succeeded."""
        mirror = self._mirror
        if mirror.keep_last + mirror.keep_every == 0:
            return
        steps = self.target.steps_to_delete(mirror.keep_last, mirror.keep_every, [], newest)
        doomed = tuple(step for step in steps if step not in pinned)
        if doomed:
            self.target.delete(doomed, False)

    def close(self) -> None:
        """Closes both stores. Errors are ignored: what was copied is committed."""
        for store in (self._source, self._target):
            try:
                if store is not None:
                    store.close()
            except Error:
                pass
        self._source = self._target = None

    def _copy(self, job: MirrorJob) -> Copied | None:
        self._is_opening = True
        if self._source is None:
            place = self._source_place
            self._source = _cairn.Store(place.address, False, None, credentials=place.credentials)
        if self._target is None:
            self._target = _cairn.Store(
                str(self._mirror),
                True,
                None,
                take_over=self._may_take_over,
                credentials=self._mirror.credentials,
            )
            # If another process takes over the mirror later, this one must not take it back.
            self._may_take_over = False
        self._is_opening = False
        place = self._source_place
        if place.uuid is not None and self._source.uuid() != place.uuid:
            raise Conflict(
                f"step {job.step} was not copied to {self._mirror}: {place.address} is another "
                "store than the one in which it was saved",
                step=job.step,
            )
        if job.step not in self._source.steps():
            raise NotFound(f"step {job.step} was deleted before it was copied", step=job.step)
        created_unix_ns = self._source.step_info(job.step).created_unix_ns
        latest = self._target.latest() if job.is_catch_up else None
        if latest is not None and self._target.step_info(latest).created_unix_ns >= created_unix_ns:
            return None
        copied = self._target.copy_from(
            self._source,
            self._progress,
            steps=[job.step],
            overwrite=job.overwrite,
            threads=self._mirror.threads,
            max_bytes_per_second=self._mirror.max_rate,
        )
        if copied[0].outcome == "deleted":
            raise NotFound(f"step {job.step} was deleted while it was copied", step=job.step)
        return Copied(copied[0], created_unix_ns)
