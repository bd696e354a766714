"""`Saver`: when a training loop saves, which steps it keeps, and how it resumes; and the agreement
between the ranks of a training job on what to do at a step."""

from __future__ import annotations

import operator
import signal
import time
import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from cairn._base.addresses import best_texts
from cairn._base.closing import Closing
from cairn._mirror.options import Mirrors, mirror_chain
from cairn._ranks.ranks import Ranks
from cairn._save.tuning import SaveTuning
from cairn._tensors.stateful import is_stateful
from cairn.errors import Error, Invalid, Unavailable
from cairn.store import SaveHandle, Store
from cairn.torch._rank_parts import DataloaderState
from cairn.torch._resume import OnDamage, Resume, ResumedStep, ResumeOptions, check_store
from cairn.torch._signals import SignalWatch

_MIRROR_SLICE_SECONDS = 1.0


class JobStatus(NamedTuple):
    """The status of one rank, or the combined status of all ranks.

    Attributes:
        signal: number of a signal that at least one rank has received; 0 for none.
        saving: True if the last save is still running on at least one rank.
    """

    signal: int
    saving: bool


class Agreement:
    """Combines the status of all ranks that have a store open.

    The ranks have separate connections for this, so that an agreement neither waits for a GPU nor
    interferes with the collectives of the training or with a running save. All ranks create, use
    and close the object at the same points of the program.

    Raises Unavailable if a rank does not connect in time.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.seconds = 0.0
        self._ranks: Ranks | None = ranks.connected_again()

    def agree_on(self, step: int, local: JobStatus) -> JobStatus:
        """Combines the local status of all ranks. Collective.

        Raises:
            Invalid: the ranks are at different steps.
            Unavailable: a rank has died, or did not call in time.
        """
        assert self._ranks is not None
        begin = time.perf_counter()
        try:
            replies = self._ranks.exchange_values(lambda: (*local, step))
        except Unavailable as error:
            raise Unavailable(
                f"step {step}: a rank has died, or did not reach it in time ({error})", step=step
            ) from error
        self.seconds += time.perf_counter() - begin
        signals, saving, steps = zip(*replies)
        if len(set(steps)) > 1:
            raise Invalid(
                f"step {step}: other ranks are at steps {min(steps)} to {max(steps)}; each must "
                "call the Saver at the same steps",
                step=step,
            )
        return JobStatus(max(signals), any(saving))

    def close(self) -> None:
        """Closes the connections. May be called again."""
        self._ranks = None


class Saver(Closing):
    """Saves the state of a training loop at intervals. Create it before the loop, close it after.

        with cairn.torch.Saver(store, every=100, keep_last=3) as saver:
            done = saver.resume(state)
            for step in range(0 if done is None else done + 1, last + 1):
                train_one_step()
                saver.step(step, make_state)

    When it saves
        At steps that ``every`` divides, in the background unless ``async_=False``. Only one save
        runs at a time: a step that is due waits for the running save. The error of a background
        save is raised once, by the next :meth:`step` or :meth:`close`. CUDA tensors are copied
        after the work on the current stream of their device, and that stream waits for the copies;
        work on other streams that changes them has to wait for that stream.

    Kept steps
        The last ``keep_last`` steps on the line of the step that was saved last
        (docs/versions.md), those that ``keep_every`` divides, the best by a metric
        (``keep_best``), and those with tags; all steps if none of the three is given. Other steps
        that rank 0 sees are deleted once a newer step is durable. The step that was saved last is
        never deleted, nor are ``base`` and steps with higher numbers, which belong to another run.

    Mirrors
        With ``mirror=``, a thread of rank 0 copies saved steps to another store, or along a chain
        of stores, after they are durable; the training does not wait for it (docs/mirroring.md).
        Steps that wait for their copy are not deleted. A step that :meth:`save` or a signal saves
        is copied to all mirrors. Steps that an earlier process has not copied are copied first.
        :meth:`resume` loads the latest step of the store and its mirrors.

    Dataloader
        With ``dataloader=``, each step also contains the state of each rank's dataloader, and
        :meth:`resume` loads it. On another number of ranks it is repartitioned or refused
        (docs/torch-training.md).

    Preemption
        A signal (by default SIGTERM; see ``signals``) is recorded. The next :meth:`step` saves,
        regardless of ``every``, and waits until the step is durable. Then the signal is delivered:
        its previous handler is called; if there was none, :meth:`step` raises
        ``SystemExit(128 + number)``, 143 for SIGTERM, so that the process ends with its files and
        stores closed. If the handler returns, or the signal was ignored before, training continues
        and :attr:`preempted` is True. A repeated signal has no effect until the first is delivered.
        :meth:`close` restores the handlers.

    Ranks
        In a multi-rank store each rank creates a Saver and calls it at the same steps. A signal to
        one rank makes all ranks save the same step and end. To this end the ranks combine their
        status at every ``agree_every``-th call and whenever a step is due: a short message to each
        other rank, over separate connections. :attr:`agreement_seconds` is the total time of these
        calls. ``signals=()`` disables them.

    Threads: the main thread only (any one thread with ``signals=()``).

    Args:
        store: opened with mode ``"a"``. The caller owns it, and closes it after the Saver.
        every: interval of saves in steps, at least 1.
        base: number or tag of the step that the run starts from, such as an imported model. It is
            neither resumed from nor deleted.
        keep_last, keep_every: see above.
        keep_best: as in :meth:`cairn.Store.prune`.
        async_: ``False`` saves before :meth:`step` returns.
        overwrite: replaces existing steps, also in mirrors, for example after a run has resumed
            from an earlier step; by default they are a Conflict.
        tuning: as in :meth:`cairn.Store.save`.
        signals: numbers of the signals that cause a save.
        dataloader: an object with ``state_dict`` and ``load_state_dict``, such as torchdata's
            ``StatefulDataLoader``, and optionally ``repartition(states)``.
        mirror: the address of a store, a :class:`cairn.Mirror`, or a sequence of them, from near to
            far, each of which copies from the one before it.
        mirror_every: interval of steps that are copied to a mirror that is given as an address, at
            least 1.
        agree_every: interval of agreements between ranks in calls of :meth:`step`, at least 1. A
            larger interval costs less, and delays the reaction to a signal.

    Raises:
        Invalid: a number is out of range, two of the mirrors are the same store, a signal cannot
            be watched, or this is not the main thread.
        NotFound: no step has the tag ``base``.
    """

    def __init__(
        self,
        store: Store,
        *,
        every: int,
        base: int | str | None = None,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: str | Iterable[str] = (),
        async_: bool = True,
        overwrite: bool = False,
        tuning: SaveTuning | None = None,
        signals: Iterable[int] = (signal.SIGTERM,),
        agree_every: int = 1,
        dataloader: Any = None,
        mirror: Mirrors | None = None,
        mirror_every: int = 1,
    ) -> None:
        check_store(store)
        self._store = store
        self._every = _at_least("every", every, 1)
        self._base = store.opened.number(base)
        self._keep_last = _at_least("keep_last", keep_last, 0)
        self._keep_every = _at_least("keep_every", keep_every, 0)
        self._keep_best = best_texts(keep_best)
        if self._keep_best:  # raises Invalid if one cannot be understood
            store.opened.native.steps_to_delete(0, 0, self._keep_best, 0)
        self._agree_every = _at_least("agree_every", agree_every, 1)
        self._async = async_
        self._overwrite, self._tuning = overwrite, tuning
        self._dataloader: DataloaderState | None = None
        if dataloader is not None:
            self._dataloader = DataloaderState(dataloader, store.rank, store.world_size)
        every_mirrored = _at_least("mirror_every", mirror_every, 1)
        self._mirrors = mirror_chain(mirror, store.address, every_mirrored)
        self._handle: SaveHandle | None = None
        self._last_step: int | None = None
        # The step whose save began last, and its annotations.
        self._saved: tuple[int | None, dict[str, Any]] = None, {}
        self._damaged: set[int] = set()  # steps that a resume has skipped
        self._calls = 0
        self._preempted = False
        self._closed = False
        self._watched = tuple(signals)
        self._watch = SignalWatch(self._watched)
        try:
            is_alone = store.world_size == 1 or not self._watched
            self._agreement = None if is_alone else Agreement(store.opened.ranks)
        except BaseException:
            self._watch.restore()
            raise
        if self._mirrors and store.rank == 0:
            line = store.opened.native.line([], end=None, base=None)
            store.opened.mirrors.catch_up(line, self._mirrors)

    @property
    def preempted(self) -> bool:
        """True once a signal to any rank has caused a save."""
        return self._preempted

    @property
    def pending_signal(self) -> int:
        """The number of a signal that this rank has received, for which the next :meth:`step` will
        save; 0: none. A loop can then end what takes long, such as an evaluation."""
        return self._watch.pending

    @property
    def last_step(self) -> int | None:
        """The last durable step that this Saver has saved or resumed from."""
        return self._last_step

    @property
    def agreement_seconds(self) -> float:
        """Total time of agreements on this rank, including the wait for the slowest rank."""
        return 0.0 if self._agreement is None else self._agreement.seconds

    def resume(
        self,
        state: Any,
        step: int | None = None,
        *,
        strict: bool = True,
        on_damage: OnDamage = "raise",
        strip_wrappers: bool = False,
    ) -> ResumedStep | None:
        """Loads the latest step, or `step`, into `state` in place, as :meth:`Store.load` does.
        Warns if there are higher steps, from which a run has gone back (docs/versions.md).

        The step is loaded from the nearest of the store, its fallbacks and the mirrors that has it.

        Args:
            strict, strip_wrappers: as for :meth:`Store.load`. With ``strict=False``, the dataloader
                remains as it is if the step has none, with a warning.
            on_damage: ``"raise"`` raises Corrupt if the step is damaged. ``"previous"`` then loads
                another copy of the step, or the last undamaged one of the steps from which it has
                continued; a warning reports each step that was skipped. All ranks load the same
                step. When the training reaches the number of a skipped step, the save replaces
                that step.

        Returns:
            The step number, an ``int`` whose ``skipped`` is a dict from the number of each step
            that was skipped to its error; None if none of the stores has a step yet, or only
            ``base``, with the state unchanged.

        Raises:
            NotFound, Invalid: see :meth:`Store.load`. Also Invalid if the state of the dataloader
                is of another number of ranks and cannot be repartitioned, with nothing changed; or
                for ``strict=False`` with ``"previous"``, where parts of the damaged step could
                remain.
            Corrupt: the step is damaged, or with ``"previous"`` all of them are. The state is
                partly filled.
            Unavailable: a store or a mirror cannot be read. Then it is not known which step is the
                latest; pass `step` to load one that can be read.
        """
        parts = () if self._dataloader is None else (self._dataloader,)
        options = ResumeOptions(
            strict, on_damage, self._mirrors, parts, self._base, strip_wrappers, "the Saver"
        )
        resume = Resume(self._store, state, options)
        try:
            self._last_step = resumed = resume.run(step)
        finally:
            self._damaged = set(resume.skipped)
            resume.warn()
        return resumed

    def step(self, number: int, state: Any, **annotations: Any) -> bool:
        """Records that step `number` of the training is done, and saves `state` if a save is due.

        Args:
            number: the step number, equal on all ranks.
            state: the state after the step, or a function that returns it, which is called only for
                a save.
            annotations: ``metrics``, ``tags`` and ``note`` of :meth:`Store.save`, if it is saved.

        Returns:
            True if the step was saved, or is being saved.

        Raises:
            SystemExit: a signal asked the process to end, and the step is durable (see the class).
            Error: this save, or an earlier background save, failed.
        """
        number = operator.index(number)
        self._check_open(number)
        due = number % self._every == 0
        status = self._agree_on_status(number, due)
        if status.signal:
            self._save_at_the_end(number, state, annotations)
            self._watch.follow(status.signal)
            return True
        if due or not status.saving:
            self._finish_background_save()
        if due:
            self._save(number, state, annotations, self._async)
        return due

    def save(self, number: int, state: Any, **annotations: Any) -> None:
        """Saves step `number` now, whether it is due or not, and waits until it is durable.

        Intended for the end of the training. The arguments are the same as for :meth:`step`. If
        :meth:`step` has just saved that step, adds the annotations to it. Does nothing if the step
        was resumed, unless the Saver overwrites.

        Raises:
            Error: this save, or an earlier background save, failed.
        """
        number = operator.index(number)
        self._check_open(number)
        self._finish_background_save()
        saved, earlier = self._saved
        if number == self._last_step == saved:
            if not annotations:
                return
            annotations = {**earlier, **annotations, "overwrite": True}
        elif number == self._last_step and not self._overwrite:
            return
        self._save(number, state, annotations, in_background=False, is_last=True)

    def close(self) -> None:
        """Waits for a running save and for the copies to mirrors, and restores the signal handlers.
        May be called again.

        A copy that fails is repeated until there has been no progress for the timeout of the
        mirror. A signal that arrived after the last :meth:`step` is then delivered.

        Raises:
            Error: the background save failed, or the newest step was not copied to a mirror. That
                step is in the store.
        """
        self._end(None)
        if self._watch.pending:
            self._watch.follow(self._watch.pending)

    def _close_after(self, error: BaseException) -> None:
        try:
            self._end(error)
        finally:
            if self._watch.pending:
                name = signal.Signals(self._watch.pending).name
                text = f"{name} arrived, but nothing was saved after it: {error!r}"
                warnings.warn(text, RuntimeWarning)

    def _check_open(self, number: int) -> None:
        if self._closed:
            raise Invalid(f"step {number}: the Saver is closed", step=number)
        _at_least("step", number, 0)

    def _agree_on_status(self, number: int, due: bool) -> JobStatus:
        """The combined status of all ranks at this step."""
        saving = self._handle is not None and not self._handle.done()
        local = JobStatus(self._watch.pending, saving)
        self._calls += 1
        if self._store.world_size == 1:
            return local
        if self._agreement is None or not (due or self._calls % self._agree_every == 0):
            return JobStatus(0, True)  # no agreement at this step: assume that nothing has changed
        return self._agreement.agree_on(number, local)

    def _save_at_the_end(self, number: int, state: Any, annotations: dict[str, Any]) -> None:
        try:
            self._finish_background_save()
        except Error as error:
            # The current state matters most, and there may be no time for anything else.
            warnings.warn(f"an earlier save failed: {error}", RuntimeWarning)
        self._save(number, state, annotations, in_background=False, is_last=True)
        self._preempted = True

    def _save(
        self,
        number: int,
        state: Any,
        annotations: dict[str, Any],
        in_background: bool,
        is_last: bool = False,
    ) -> None:
        """`is_last`: all mirrors receive the step, because there may be no other save."""
        made = _made(state)
        if self._dataloader is not None:
            made = self._dataloader.add_to(made)
        saving = {"overwrite": self._overwrite, "tuning": self._tuning, **annotations}
        if self._damaged:
            saving["overwrite"] |= number in self._damaged
            if self._last_step is None:  # all steps are damaged
                tuning = saving["tuning"] or SaveTuning()
                saving["tuning"] = replace(tuning, incremental=False)
        mirrors = tuple(replace(one, every=1) for one in self._mirrors) if is_last else None
        mirror = (mirrors or self._mirrors) or None
        self._saved = number, annotations
        if in_background:
            self._handle = self._store.save_async(number, made, **saving, mirror=mirror)
            self._handle.make_streams_wait()
        else:
            self._store.save(number, made, **saving, mirror=mirror)
            self._last_step = number
            self._delete_old()

    def _finish_background_save(self) -> None:
        """Waits for the background save, if there is one, and deletes old steps. Raises the error
        of that save."""
        if self._handle is not None:
            self._wait_for_save()
            self._delete_old()

    def _wait_for_save(self) -> None:
        if self._handle is None:
            return
        try:
            self._handle.result()  # after Ctrl-C, a later call waits again
        except Exception:
            self._handle = None
            raise
        self._handle = None
        self._last_step = self._saved[0]

    def _delete_old(self) -> None:
        prunes = self._keep_last + self._keep_every > 0 or self._keep_best
        if self._last_step is not None and prunes:
            pinned = self._store.opened.pinned()  # before the copies that end in the meantime
            kept = {*pinned, self._base}
            doomed = self._store.opened.native.steps_to_delete(
                self._keep_last, self._keep_every, self._keep_best, self._last_step
            )
            # All ranks call it; the choice of rank 0 applies.
            self._store.delete(*(step for step in doomed if step not in kept))

    def _end(self, error: BaseException | None) -> None:
        if self._closed:
            return
        try:
            if error is None:
                self._finish_background_save()
                self._finish_mirrors()
            else:
                # The others may not call delete. The store waits for the mirrors when it is closed.
                self._wait_for_save()
        finally:
            self._closed = True
            self._watch.restore()
            if self._agreement is not None:
                self._agreement.close()

    def _finish_mirrors(self) -> None:
        """Waits for the copies to mirrors, and deletes the steps that waited for them. Raises the
        error of the copy of the newest step on all ranks."""
        if not self._mirrors:
            return
        mirrors = self._store.opened.mirrors
        mirrors.begin_close()
        # In slices, because the ranks do not wait for each other for longer than their timeout.
        seconds = min(_MIRROR_SLICE_SECONDS, self._store.timeout / 4)
        ranks = self._store.opened.ranks
        while not ranks.on_first(lambda: mirrors.wait(seconds)):
            pass
        self._delete_old()
        ranks.run_together(mirrors.raise_error)


def _made(state: Any) -> Any:
    # A module is callable too, but is a state itself.
    return state() if callable(state) and not is_stateful(state) else state


def _at_least(name: str, value: int, least: int) -> int:
    number = operator.index(value)
    if number < least:
        raise Invalid(f"{name}={number}: must be {least} or more")
    return number
