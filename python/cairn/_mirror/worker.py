"""`MirrorWorker`: the thread that copies steps from one store to its mirror.

1. A step is submitted when its save begins. From then on it is *pinned*: it may not be pruned.
2. The thread waits until the save is durable, opens the mirror if it is not open, and copies the
   step with one commit (kv/copy_steps.h). It opens the source a second time, for reading, so that
   saves continue in the meantime.
3. If that fails and may succeed later, it is repeated with growing pauses, until there has been no
   progress for `Mirror.timeout`. A step whose copy has failed stays pinned until a newer one is
   copied, so that the next process finds it.
4. A copied step is submitted to the next mirror of the chain, which pins it in this one. Then old
   steps of this mirror are pruned.

Whatever ends the thread also gives up its steps, so that nobody waits for a thread that has ended.
The next step starts a new one.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable

from cairn._base.addresses import canonical_address
from cairn._base.observations import free_bytes, repeated_requests
from cairn._mirror.options import Mirror
from cairn._mirror.replica import Copied, MirrorJob, Replica, Source
from cairn.errors import Error, Unavailable
from cairn.reports import MirrorReport, MirrorStatus, StoreEvent

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30.0
_STOP_SECONDS = 120.0  # after which a thread that does not end is left to its request


class CopyClock:
    """One copy of a step, from its first attempt on: its time, attempts and repeated requests.
    Threads: one.

    Args:
        number: of the mirror in its chain, from 1.
    """

    def __init__(self, step: int, mirror: Mirror, number: int) -> None:
        self._step, self._mirror, self._number = step, str(mirror), number
        self._begin = time.monotonic()
        self._repeated = repeated_requests(self._mirror) or 0
        self.attempts = 0

    def event(self, address: str, world_size: int, end: Copied | Exception) -> StoreEvent:
        """The event of the step once the mirror has it or never gets it. ``address`` is that of the
        store, which ``world_size`` ranks have open together."""
        seconds = time.monotonic() - self._begin
        error = end if isinstance(end, Exception) else None
        retries = repeated_requests(self._mirror)
        if retries is not None:  # without an attempt, they are requests of another copy
            retries = retries - self._repeated if self.attempts else 0
        return StoreEvent(
            kind="mirror",
            address=canonical_address(address),
            rank=0,
            world_size=world_size,
            step=self._step,
            unix_ns=time.time_ns(),
            seconds=seconds,
            stall_seconds=0.0,
            in_background=True,
            report=None if isinstance(end, Exception) else self._report(end, seconds),
            error=error,
            info=None,
            health=None,
            free_bytes=free_bytes(self._mirror),
            retries=retries,
            mirror=canonical_address(self._mirror),
            mirror_number=self._number,
        )

    def _report(self, copied: Copied, seconds: float) -> MirrorReport:
        done = copied.report
        return MirrorReport(
            step=done.step,
            outcome=done.outcome,
            logical_bytes=done.logical_bytes,
            copied_segments=done.copied_segments,
            copied_bytes=done.copied_bytes,
            reused_segments=done.reused_segments,
            attempts=self.attempts,
            seconds=seconds,
            lag_seconds=max(0.0, (time.time_ns() - copied.created_unix_ns) / 1e9),
        )


class MirrorWorker:
    """Copies steps to one mirror, one after the other, on its own thread.

    Threads: all methods may be called from any thread, and do not wait for the storage, except for
    ``wait`` and ``stop``. After a fork, the child must not call it.
    """

    def __init__(
        self,
        source: Source,
        mirror: Mirror,
        following: MirrorWorker | None,
        report: Callable[[CopyClock, Copied | Exception], None],
        number: int,
    ) -> None:
        """
        Args:
            report: is called after a copy.
            number: of the mirror in its chain, from 1.
        """
        self._mirror = mirror
        self._report = report
        self._number = number
        self._following = following
        self._replica = Replica(source, mirror, self._report_progress)
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._waiting: deque[MirrorJob] = deque()
        self._active: MirrorJob | None = None
        self._failed: deque[int] = deque()
        self._last_job: MirrorJob | None = None
        self._last_step: int | None = None
        self._error: Exception | None = None
        self._bytes = (0, 0)
        self._thread: threading.Thread | None = None
        self._is_stopping = False
        self._retries = True
        self._is_closing = False
        self._following_chain: list[Mirror] = []  # that has to catch up
        self._progress_time = time.monotonic()
        self._not_before = 0.0  # when the next copy may begin

    def submit(self, job: MirrorJob) -> None:
        """Adds a step. Skips the oldest ones if too many wait."""
        skipped: list[MirrorJob] = []
        with self._changed:
            self._waiting.append(job)
            self._last_job = job
            while len(self._waiting) + len(self._failed) > self._mirror.max_pending:
                if self._failed:
                    self._failed.popleft()
                else:
                    skipped.append(self._waiting.popleft())
            is_stopping = self._is_stopping
            is_started = not is_stopping and self._start()
            if not is_started:
                self._waiting.remove(job)
        if not is_started:
            text = f"step {job.step} was not copied to {self._mirror}: no thread can start"
            error = Unavailable(text, step=job.step)
            self._give_up(job, self._stopped(job.step) if is_stopping else error)
        for old in skipped:
            text = (
                f"step {old.step} was not copied to the mirror {self._mirror}: more than "
                f"{self._mirror.max_pending} steps were waiting, because saves are faster than the "
                "copies"
            )
            self._give_up(old, Unavailable(text, step=old.step))

    def catch_up(self, steps: list[int], chain: list[Mirror]) -> None:
        """Copies the steps of the source that are newer than all steps of the mirror.

        ``chain``: this mirror and the mirrors after it, whose ``every`` selects steps.
        """
        due = [step for step in steps if step % chain[0].every == 0]
        with self._changed:
            self._following_chain = chain[1:]
        for step in due[-self._mirror.max_pending :]:
            count = sum(step % mirror.every == 0 for mirror in chain)
            self.submit(MirrorJob(step, count, is_catch_up=True))

    def pinned(self) -> set[int]:
        """The steps of the source that must not be pruned."""
        with self._changed:
            active = [] if self._active is None else [self._active]
            return {job.step for job in (*self._waiting, *active)} | set(self._failed)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until no step waits for its copy. Returns False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and not self._active, timeout)

    def error(self) -> Exception | None:
        """Why the step that was submitted last is not in the mirror; None if it is, or may be."""
        with self._changed:
            return None if self._last_job is None else self._last_job.error

    def status(self) -> MirrorStatus:
        with self._changed:
            return MirrorStatus(
                address=str(self._mirror),
                last_step=self._last_step,
                step=None if self._active is None else self._active.step,
                copied_bytes=self._bytes[0],
                total_bytes=self._bytes[1],
                waiting=tuple(job.step for job in self._waiting),
                error=self._error,
            )

    def begin(self) -> None:
        """Steps are submitted again, after ``begin_close`` or ``end_retries``."""
        with self._changed:
            self._is_closing, self._retries = False, True

    def expect_source(self, uuid: str) -> None:
        """See `Replica.expect_source`."""
        self._replica.expect_source(uuid)

    def begin_close(self) -> None:
        """No more steps are submitted. After a copy has failed, the others are not repeated, so
        that ``wait`` returns in time."""
        with self._changed:
            self._is_closing = True

    def end_retries(self) -> None:
        """From now on, a copy that fails is not repeated."""
        with self._changed:
            self._retries = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the copy that runs, gives up waiting copies, and ends the thread."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_STOP_SECONDS)

    def is_current_thread(self) -> bool:
        """Whether the caller runs on the thread of this worker, as observers do."""
        return self._thread is threading.current_thread()

    def _start(self) -> bool:
        # Requires _changed. Returns False if the system has no thread left. A daemon thread: Python
        # waits for the others before it calls the functions that close stores at exit.
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="cairn-mirror", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        self._changed.notify_all()
        return True

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while (job := self._next_job()) is not None:
                self._handle(job)
        except BaseException as unexpected:
            error = unexpected
        self._end(error)

    def _handle(self, job: MirrorJob) -> None:
        clock = None
        try:
            if not self._await_save(job):
                return
            clock = self._clock(job)
            copied = self._copy(job, clock)
        except BaseException as unexpected:  # the thread must live as long as jobs arrive
            copied = _as_error(unexpected, job)
        if isinstance(copied, Exception):
            self._fail(job, copied, clock)
            return
        try:
            if copied is not None and clock is not None:
                self._report(clock, copied)
        finally:
            self._finish(job)

    def _end(self, error: BaseException | None) -> None:
        """The last call of the thread. It gives up the steps that nobody would copy any more."""
        with contextlib.suppress(BaseException):
            self._replica.close()
        with self._changed:
            if self._active is not None:
                self._waiting.appendleft(self._active)
        while True:
            with self._changed:
                job = self._active = self._waiting.popleft() if self._waiting else None
                if job is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
            reason = self._stopped(job.step) if error is None else _as_error(error, job)
            with contextlib.suppress(BaseException):  # the others must be given up, too
                self._give_up(job, reason)

    def _next_job(self) -> MirrorJob | None:
        with self._changed:
            # A copy limits its own rate; here is the limit for many small steps.
            pause = self._not_before - time.monotonic()
            self._changed.wait_for(lambda: self._is_stopping, max(0.0, pause))
            self._changed.wait_for(lambda: self._waiting or self._is_stopping)
            if self._is_stopping:
                return None
            self._active = self._waiting.popleft()
            self._bytes = (0, 0)
            return self._active

    def _await_save(self, job: MirrorJob) -> bool:
        """Waits until the step is durable. Returns False if its save failed, which the handle of
        the save reports."""
        if job.save is None:
            return True
        save, job.save = job.save, None
        try:
            while not save.wait(0.2):
                if self._is_stopping:
                    raise self._stopped(job.step)
            save.report()
        except Exception as error:
            job.fail(error)
            with self._changed:
                self._active = None
                self._changed.notify_all()
            return False
        return True

    def _copy(self, job: MirrorJob, clock: CopyClock) -> Copied | Exception | None:
        """Copies the step (`Replica.copy`). Returns the error, if it is final."""
        pause, self._progress_time = _FIRST_PAUSE, time.monotonic()
        while True:
            try:
                begin = time.monotonic()
                clock.attempts += 1
                copied = self._replica.copy(job)
                if self._mirror.max_rate is not None and copied is not None:
                    self._not_before = begin + copied.report.copied_bytes / self._mirror.max_rate
                return copied
            except Error as error:
                if self._is_stopping:
                    return self._stopped(job.step)
                if not self._replica.is_temporary(error):
                    return error
                with self._changed:
                    is_first, self._error = self._error is None, error
                    retries = self._retries
                if not retries or time.monotonic() - self._progress_time > self._mirror.timeout:
                    return error
                if is_first:
                    _warn(f"step {job.step} is not in the mirror {self._mirror} yet; trying "
                          f"again: {error}")
            with self._changed:
                self._changed.wait_for(lambda: self._is_stopping or not self._retries, pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _finish(self, job: MirrorJob) -> None:
        job.complete()
        try:
            if self._following is not None:
                self._pass_on(job, self._following)
        except BaseException as error:
            job.fail(_as_error(error, job))
            _warn(f"step {job.step} was not passed on to the mirrors after {self._mirror}: {error}")
        try:
            self._replica.prune(job.step, self._following.pinned() if self._following else set())
        except BaseException as error:
            _warn(f"old steps of the mirror {self._mirror} were not deleted: {error}")
        with self._changed:
            self._active = None
            self._bytes = (self._bytes[1], self._bytes[1])
            self._error = None
            self._last_step = max(job.step, self._last_step or 0)
            self._failed = deque(step for step in self._failed if step > job.step)
            self._changed.notify_all()

    def _pass_on(self, job: MirrorJob, following: MirrorWorker) -> None:
        """Lets the next mirror catch up once, and submits the step to it."""
        with self._changed:
            chain, self._following_chain = self._following_chain, []
        mirror = self._replica.target
        following.expect_source(mirror.uuid())
        if chain:
            following.catch_up([step for step in mirror.steps() if step != job.step], chain)
        if job.is_for_next:
            following.submit(job)

    def _clock(self, job: MirrorJob) -> CopyClock:
        return CopyClock(job.step, self._mirror, self._number)

    def _give_up(self, job: MirrorJob, error: Exception, clock: CopyClock | None = None) -> None:
        """Gives up a step. ``clock``: of its copy, if it has begun."""
        try:
            self._report(clock or self._clock(job), error)
        finally:
            job.fail(error)

    def _fail(self, job: MirrorJob, error: Exception, clock: CopyClock | None) -> None:
        try:
            self._give_up(job, error, clock)  # before `wait` returns, after which it is asked for
        finally:
            with self._changed:
                self._active = None
                self._error = error
                self._failed.append(job.step)
                is_stopping = self._is_stopping
                self._retries = self._retries and not self._is_closing
                self._changed.notify_all()
        if not is_stopping:
            _warn(f"step {job.step} was not copied to the mirror {self._mirror}: {error}")

    def _report_progress(self, step: int, done_bytes: int, total_bytes: int) -> bool:
        with self._changed:
            if (done_bytes, total_bytes) != self._bytes:
                self._progress_time = time.monotonic()
            self._bytes = (done_bytes, total_bytes)
            return not self._is_stopping

    def _stopped(self, step: int) -> Unavailable:
        text = f"step {step} is not in the mirror {self._mirror}: the copies were stopped"
        return Unavailable(text, step=step)


def workers_of(
    source: Source,
    mirrors: tuple[Mirror, ...],
    report: Callable[[CopyClock, Copied | Exception], None],
) -> list[MirrorWorker]:
    """One worker per mirror, from near to far; each copies from the mirror before it."""
    workers: list[MirrorWorker] = []
    for i in reversed(range(len(mirrors))):
        near = Source(str(mirrors[i - 1]), mirrors[i - 1].credentials) if i > 0 else source
        following = workers[0] if workers else None
        workers.insert(0, MirrorWorker(near, mirrors[i], following, report, i + 1))
    return workers


def _as_error(error: BaseException, job: MirrorJob) -> Exception:
    """The error itself; for SystemExit and the like, which would end the thread that it is raised
    on, an error that names it."""
    if isinstance(error, Exception):
        return error
    text = f"step {job.step} was not copied: {error!r} was raised on the thread of the mirror"
    return Unavailable(text, step=job.step)


def _warn(text: str) -> None:
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except BaseException:  # a filter that raises; the error is reported in other ways as well
        pass
