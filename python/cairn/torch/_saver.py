"""`Saver`: when a training loop saves, what it keeps, and how it goes on after the end."""

from __future__ import annotations

import operator
import signal
import warnings
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from cairn._save.stateful import is_stateful
from cairn.errors import Error, Invalid
from cairn.store import SaveHandle, Store
from cairn.torch._agreement import Agreement, JobStatus
from cairn.torch._signals import SignalWatch


class Saver:
    """Saves a training loop's state when it is due; made before the loop, closed after it.

        with cairn.torch.Saver(store, every=100, keep_last=3) as saver:
            done = saver.resume(state)
            for step in range(0 if done is None else done + 1, last + 1):
                train_one_step()
                saver.step(step, make_state)

    When it saves
        At steps that ``every`` divides, behind the training unless ``async_=False``. One save runs
        at a time: a step that is due while one runs waits for it. What went wrong with a save
        behind the training is raised by the next :meth:`step` or :meth:`close`, once.
        CUDA tensors are copied behind the work of the current stream of their device, which is held
        back until then; work on other streams that changes them has to wait for that stream.

    What it keeps
        The last ``keep_last`` steps, and those that ``keep_every`` divides; everything if both are
        0. Others are deleted once a newer step is durable, as rank 0 sees them. The step that was
        saved last is never deleted, nor steps with higher numbers, which are not of this run.

    Preemption
        A signal (SIGTERM, unless ``signals`` says otherwise) is noted. The next :meth:`step` saves,
        whatever ``every`` says, and returns to nobody before the step is durable. Then the signal
        takes its course: the handler that was there before is called; where there was none,
        :meth:`step` raises ``SystemExit(128 + number)``, 143 for SIGTERM, so that the process ends
        as it was told to, with its files and stores closed. If the handler returns, or the signal
        was ignored before, training goes on and :attr:`preempted` is True. The same signal again
        changes nothing while the first waits. :meth:`close` gives the handlers back.

    Ranks
        Of a store that several ranks have open together, each makes a Saver and calls it at the
        same steps. A signal to one rank makes all save, at the same step, and end. For that they
        ask each other at every ``agree_every``-th call and whenever a step is due: an all-reduce of
        32 bytes in host memory, over a Gloo group of their own. :attr:`agreement_seconds` adds up
        what it takes. ``signals=()`` does without.

    Threads: the main one (``signals=()``: any one).

    Args:
        store: opened with mode ``"a"``; it stays the caller's, who closes it after the Saver.
        every: steps from one save to the next, at least 1.
        keep_last, keep_every: see above.
        async_: ``False`` saves before :meth:`step` returns.
        overwrite: replaces steps that exist, as those of a run that went back to an earlier one;
            by default they are a Conflict.
        signals: numbers of signals to save on.
        agree_every: calls of :meth:`step` from one question among ranks to the next, at least 1.
            The more, the cheaper, and the later a signal is seen.
        process_group: the one that the store was opened with, if any; it is asked itself then, and
            must be able to reduce tensors in host memory.

    Raises:
        Invalid: a number out of range, a signal that cannot be watched, or not the main thread.
    """

    def __init__(
        self,
        store: Store,
        *,
        every: int,
        keep_last: int = 0,
        keep_every: int = 0,
        async_: bool = True,
        overwrite: bool = False,
        signals: Iterable[int] = (signal.SIGTERM,),
        agree_every: int = 1,
        process_group: Any = None,
    ) -> None:
        self._store = store
        self._every = _at_least("every", every, 1)
        self._keep_last = _at_least("keep_last", keep_last, 0)
        self._keep_every = _at_least("keep_every", keep_every, 0)
        self._agree_every = _at_least("agree_every", agree_every, 1)
        self._async = async_
        self._overwrite = overwrite
        self._handle: SaveHandle | None = None
        self._handle_step = 0
        self._last_step: int | None = None
        self._calls = 0
        self._preempted = False
        self._closed = False
        self._watched = tuple(signals)
        self._watch = SignalWatch(self._watched)
        try:
            self._agreement = Agreement(store, process_group) if self._watched else None
        except BaseException:
            self._watch.restore()
            raise

    @property
    def preempted(self) -> bool:
        """True once a signal has made the Saver save, on whichever rank it came."""
        return self._preempted

    @property
    def last_step(self) -> int | None:
        """The last step that this Saver knows to be durable, saved or resumed from."""
        return self._last_step

    @property
    def agreement_seconds(self) -> float:
        """Time that this rank has spent asking the others, waiting for the slowest included."""
        return 0.0 if self._agreement is None else self._agreement.seconds

    def resume(self, state: Any, step: int | None = None, *, strict: bool = True) -> int | None:
        """Loads the latest step, or `step`, into `state` in place, as :meth:`Store.load` does.

        Returns:
            The step's number; None, with the state as it was, if the store has no step yet.

        Raises:
            NotFound, Invalid, Corrupt: as :meth:`Store.load`. If the latest step is damaged, an
                earlier one can be given as `step`.
        """
        if step is None and not self._store.steps():
            return None
        self._last_step = self._store.load(state, step, strict).step
        return self._last_step

    def step(self, number: int, state: Any) -> bool:
        """Tells that step `number` of the training is done; saves `state` if that is due.

        Args:
            number: of the step, the same on all ranks.
            state: the state after the step; or a function that makes it, called only for a save.

        Returns:
            True if the step was saved, or is being saved.

        Raises:
            SystemExit: the process was told to end, and the step is durable (see the class).
            Error: this save failed, or an earlier one that ran behind the training.
        """
        number = operator.index(number)
        self._check_open(number)
        due = number % self._every == 0
        status = self._agree_on_status(number, due)
        if status.signal:
            self._save_at_the_end(number, state)
            self._watch.follow(status.signal)
            return True
        if due or not status.saving:
            self._finish_background_save()
        if due:
            self._save(number, state, self._async)
        return due

    def save(self, number: int, state: Any) -> None:
        """Saves step `number` now, whatever is due, and waits until it is durable.

        For the end of the training. Does nothing if :meth:`step` has just saved that step. Raises
        as :meth:`step`.
        """
        number = operator.index(number)
        self._check_open(number)
        self._finish_background_save()
        if number != self._last_step:
            self._save(number, state, in_background=False)

    def close(self) -> None:
        """Waits for a save that runs, and gives the signals back. May be called again.

        A signal that came after the last :meth:`step` then takes its course.

        Raises:
            Error: the save that ran behind the training failed.
        """
        self._end(failed=False)
        if self._watch.pending:
            self._watch.follow(self._watch.pending)

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        # The error that is on its way says more than what comes after it.
        try:
            self._end(failed=True)
        except Exception as second:
            warnings.warn(f"while the Saver was closed: {second}", RuntimeWarning)
        if self._watch.pending:
            name = signal.Signals(self._watch.pending).name
            warnings.warn(f"{name} came, and nothing was saved after it: {error!r}", RuntimeWarning)

    def _check_open(self, number: int) -> None:
        if self._closed:
            raise Invalid(f"step {number}: the Saver is closed", step=number)
        _at_least("step", number, 0)

    def _agree_on_status(self, number: int, due: bool) -> JobStatus:
        """What all ranks do at this step."""
        saving = self._handle is not None and not self._handle.done()
        local = JobStatus(self._watch.pending, saving)
        self._calls += 1
        if self._store.world_size == 1:
            return local
        if self._agreement is None or not (due or self._calls % self._agree_every == 0):
            return JobStatus(0, True)  # not asked: as if nothing had come to an end
        return self._agreement.agree_on(number, local)

    def _save_at_the_end(self, number: int, state: Any) -> None:
        try:
            self._finish_background_save()
        except Error as error:
            # The state of now is what counts, and there may be no time for anything else.
            warnings.warn(f"an earlier save failed: {error}", RuntimeWarning)
        self._save(number, state, in_background=False)
        self._preempted = True

    def _save(self, number: int, state: Any, in_background: bool) -> None:
        made = _made(state)
        if in_background:
            self._handle = self._store.save_async(number, made, overwrite=self._overwrite)
            self._handle_step = number
            self._handle._make_streams_wait()
        else:
            self._store.save(number, made, overwrite=self._overwrite)
            self._last_step = number
            self._delete_old()

    def _finish_background_save(self) -> None:
        """Waits for the save behind the training, if there is one, and deletes what is old then.

        Raises what went wrong.
        """
        if self._handle is not None:
            self._wait_for_save()
            self._delete_old()

    def _wait_for_save(self) -> None:
        if self._handle is None:
            return
        try:
            self._handle.result()  # Ctrl-C leaves it to be waited for again
        except Exception:
            self._handle = None
            raise
        self._handle = None
        self._last_step = self._handle_step

    def _delete_old(self) -> None:
        if self._last_step is not None and self._keep_last + self._keep_every > 0:
            steps = self._store.steps()
            # Called by all ranks, of which the first one's choice is taken.
            self._store.delete(*unwanted(steps, self._last_step, self._keep_last, self._keep_every))

    def _end(self, failed: bool) -> None:
        if self._closed:
            return
        try:
            # After an error of this rank the others may not come to delete.
            self._wait_for_save() if failed else self._finish_background_save()
        finally:
            self._closed = True
            self._watch.restore()
            if self._agreement is not None:
                self._agreement.close()


def unwanted(steps: Sequence[int], newest: int, keep_last: int, keep_every: int) -> list[int]:
    """Steps to delete once `newest` is durable: neither among the last ones nor multiples.

    `newest` stays in any case, as do steps above it.
    """
    older = sorted(step for step in steps if step < newest)
    recent = older[max(len(older) - max(keep_last - 1, 0), 0) :]
    return [
        step for step in older if step not in recent and not (keep_every and step % keep_every == 0)
    ]


def _made(state: Any) -> Any:
    # A module can be called too, and is a state.
    return state() if callable(state) and not is_stateful(state) else state


def _at_least(name: str, value: int, least: int) -> int:
    number = operator.index(value)
    if number < least:
        raise Invalid(f"{name}={number}: must be {least} or more")
    return number
