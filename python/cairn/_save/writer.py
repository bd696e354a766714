"""`Writer`: a step that is written tensor by tensor.

1. Entering the block begins the step (core/upkeep/step_part.h): each rank has its part.
2. Each added leaf is written as one portion of the part. When `add` returns, nothing of it is read
   any more. The keys of the tree are the added names.
3. Leaving the block commits. In a multi-rank store, the ranks exchange their names once all parts
   are durable, and rank 0 then commits. The keys are nested at their dots.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base.devices import current_streams
from cairn._opened.continued import base_arguments, continue_from_loaded, noted_base
from cairn._opened.opened import Opened
from cairn._save.flatten import flatten
from cairn._save.options import SaveOptions
from cairn._tensors.stateful import StatefulAdapter
from cairn.errors import Conflict, Error, Invalid, Unavailable

if TYPE_CHECKING:
    from cairn._base.progress import Progress, StreamDisplay
    from cairn._mirror.options import Mirror
    from cairn.reports import SaveReport

_NO_MEANING = ("unchanged", "share_equal", "device_snapshot")
"""Fields of SaveTuning that compare with tensors which a writer does not have."""
_NEW, _OPEN, _ENDED = range(3)


class Writer:
    """Writes one step, leaf by leaf. Created by :meth:`cairn.Store.writer`; a context manager that
    is used once.

    Several ranks
        All ranks enter and leave the block together, and each adds what it has. Every rank of its
        mesh adds a ``DTensor`` or ``ShardedTensor``. Any other tensor is added by one rank only:
        ranks do not know in advance what others add. If several ranks add a plain value, the lowest
        rank's is stored. If one rank fails, the step does not exist, and all ranks raise.

    Threads: any thread may add, but only one at a time; a concurrent call raises Conflict. The
    thread that has entered the block leaves it.

    Progress
        It shows the bytes that were added, and their rate. A function receives 0 as the total,
        because the writer does not know how many bytes follow. If it returns False, ``add`` raises
        Unavailable, and the step cannot be committed any more.

    Attributes:
        step: the number of the step.
        report: what this rank has written; None before the step is committed.
    """

    def __init__(
        self,
        opened: Opened,
        step: int,
        options: SaveOptions,
        mirrors: tuple[Mirror, ...],
        progress: Progress,
    ) -> None:
        """Private: use :meth:`cairn.Store.writer`."""
        self.step = step
        self.report: SaveReport | None = None
        self._opened = opened
        self._ranks = opened.ranks
        self._options = options
        self._mirrors = mirrors
        self._state = _NEW
        self._names = _Names(step)
        self._part: _cairn.StepPart | None = None
        self._failure: BaseException | None = None
        self._adding = threading.Lock()
        self._adder: int | None = None  # the thread that holds it
        self._progress = progress
        self._display: StreamDisplay | None = None

    def add(self, fqn: str, value: Any) -> None:
        """Writes a leaf, or a nested state below ``fqn``.

        A ``.`` in the name is a level of nesting: ``"a.0.c"`` is ``{"a": {"0": {"c": ...}}}`` when
        the step is read. Numbers are keys of dicts, not positions in lists; :meth:`Store.load`
        fills lists nevertheless, because it matches leaves by their names. When the call returns,
        the caller may change or free a tensor in host memory or on a device. Each call waits for
        the disk: add many small tensors in one call, as a dict.

        Args:
            fqn: the name, which is new in this step and is neither above nor below another one.
            value: what :meth:`cairn.Store.save` accepts as a state. Tensors that share memory share
                it in the step if they are added by one call.

        Raises:
            Invalid: the value cannot be saved, or the name is not new. The step can still be
                committed without it.
            Conflict: another thread is adding.
            Unavailable: no space, an I/O error, or ``progress`` has returned False. The step cannot
                be committed any more.
        """
        part = self._open_part()
        if not self._adding.acquire(blocking=False):
            raise Conflict("another thread is adding to this writer: add from one at a time")
        self._adder = threading.get_ident()
        try:
            self._names.check(fqn)
            # May run code of the caller; nothing is written before it has succeeded.
            state = StatefulAdapter({fqn: value}).state
            flat = flatten(state, self._options.allow_pickle, self._ranks, [])
            self._names.take(fqn)
            try:
                self._write(part, flat.batch)
            except BaseException as error:
                self._failure = error  # C++ has abandoned the part
                raise
        finally:
            self._adder = None
            self._adding.release()

    def _write(self, part: _cairn.StepPart, batch: _cairn.Batch) -> None:
        streams = current_streams(batch.devices())
        if self._display is None:
            part.add(batch, {}, streams)
            return
        with self._display.portion():
            written = part.add(batch, {}, streams)
        if not self._display.add(written):
            raise Unavailable("stopped, because progress= returned False", step=self.step)

    def add_all(self, leaves: Iterable[tuple[str, Any]]) -> None:
        """Adds each pair of name and value, such as from a generator or ``dict.items()``."""
        for fqn, value in leaves:
            self.add(fqn, value)

    def __enter__(self) -> Writer:
        if self._state != _NEW:
            raise Invalid("a writer is used once: call store.writer() again", step=self.step)
        self._state = _ENDED  # unless all ranks begin

        def prepare() -> tuple[dict[str, Any], list[Any]]:
            annotations = self._options.annotations()
            self._opened.begin_writer(self)
            self._opened.begin_change()
            base = noted_base(self._opened.native, self.step)
            continue_from_loaded(self._opened.native, self.step)
            self._part = _cairn.StepPart(self._opened.native)
            return annotations, [self.step, arguments, base]

        arguments = self._options.native()
        for name in _NO_MEANING:
            arguments.pop(name, None)
        try:
            self._ranks.begin("writer")
            loaded = base_arguments(self._opened)
            annotations, replies = self._ranks.run_and_exchange(prepare)
            *first, base = replies[0]
            if any(one[:2] != first for one in replies):
                raise Invalid(
                    "the ranks write with different steps or options: all give the same arguments",
                    step=self.step,
                )
            if arguments.get("base_step") is None and arguments.get("incremental", True):
                arguments |= loaded or base
            part = self._part
            assert part is not None  # or prepare() has raised
            self._ranks.run_together(
                lambda: part.begin_together(self.step, **arguments, **annotations)
            )
        except BaseException:
            self._close(committed=False)
            raise
        self._state = _OPEN
        if self._progress:
            from cairn._base.progress import StreamDisplay

            task = f"writing step {self.step}"
            self._display = StreamDisplay(self._progress, task, self._ranks.rank)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if error is not None:
            self._fail_on_all_ranks(error)
            return
        committed = False
        try:
            self._commit()
            committed = True
        finally:
            self._close(committed)

    def abort(self) -> None:
        """Ends the writer without a step, and removes what was written. Closing the store calls it.
        Waits for another thread that adds. The end of the block then raises Invalid. May be called
        again."""
        if self._state == _OPEN:
            self._close(committed=False)

    def _open_part(self) -> _cairn.StepPart:
        if self._state == _NEW:
            raise Invalid("use `with store.writer(step) as writer:`, and add inside the block")
        if self._state == _ENDED or self._part is None:
            raise Invalid(
                f"the writer of step {self.step} has ended: call store.writer() again",
                step=self.step,
            )
        if self._failure is not None:
            raise Invalid(
                f"step {self.step} cannot be committed, because writing it has failed: "
                f"{self._failure}",
                step=self.step,
            ) from self._failure
        return self._part

    def _commit(self) -> None:
        ranks = self._ranks

        def prepare() -> tuple[SaveReport | None, list[str]]:
            part = self._open_part()
            return part.prepare() if ranks.rank != 0 else None, self._names.added()

        def commit() -> SaveReport | None:
            if ranks.rank != 0:
                return report
            return self._open_part().commit(self._paths(replies), {})

        report, replies = ranks.run_and_exchange(prepare)
        self.report = ranks.run_together(commit)

    def _paths(self, replies: list[list[str]]) -> dict[str, tuple[str | int, ...]]:
        """The keys of each name. Raises Invalid if names of two ranks contradict each other."""
        names = _Names(self.step)
        for fqn in self._names.added():
            names.take(fqn)
        for reply in replies[1:]:
            for fqn in reply:
                if not names.has(fqn):
                    names.check(fqn)
                    names.take(fqn)
        return {fqn: tuple(fqn.split(".")) for fqn in names.added()}

    def _fail_on_all_ranks(self, error: BaseException) -> None:
        def fail() -> bytes:
            raise error

        try:
            if self._state == _OPEN:
                self._ranks.exchange(fail)
        except BaseException:
            pass  # the error of the block, which propagates
        finally:
            self._close(committed=False)

    def _close(self, committed: bool) -> None:
        part, self._part, self._state = self._part, None, _ENDED
        if self._display is not None:
            self._display.clear()
        # A caller inside of `add` cannot wait for it, and the part raises Conflict.
        waits = self._adder != threading.get_ident()
        try:
            with self._adding if waits else nullcontext():
                if part is not None:
                    part.close()
        finally:
            self._opened.end_writer(self)
            if part is not None and committed:
                overwrite = self._options.overwrite
                self._opened.mirrors.submit(self.step, self._mirrors, None, overwrite)


class _Names:
    """The names that were added. No name is above or below another one."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._is_leaf: dict[str, bool] = {}
        """By name: whether it was added. False: it is above an added one."""

    def added(self) -> list[str]:
        return [fqn for fqn, is_leaf in self._is_leaf.items() if is_leaf]

    def has(self, fqn: str) -> bool:
        return self._is_leaf.get(fqn, False)

    def check(self, fqn: str) -> None:
        """Raises Invalid for a name that cannot be added."""
        if not isinstance(fqn, str) or not fqn:
            raise Invalid(f"{fqn!r} is not a name: give a str that is not empty", step=self._step)
        if self.has(fqn):
            text = f"'{fqn}' was added already: give each leaf its own name"
            raise Invalid(text, key=fqn, step=self._step)
        for above in filter(self.has, _prefixes(fqn)):
            raise self._contradiction(fqn, above)
        if fqn in self._is_leaf:
            below = next(each for each in self.added() if each.startswith(f"{fqn}."))
            raise self._contradiction(below, fqn)

    def take(self, fqn: str) -> None:
        self._is_leaf.update(dict.fromkeys(_prefixes(fqn), False))
        self._is_leaf[fqn] = True

    def _contradiction(self, below: str, above: str) -> Error:
        return Invalid(
            f"'{below}' is below '{above}', and both were added: a key is either a leaf or a dict",
            key=below,
            step=self._step,
        )


def _prefixes(fqn: str) -> list[str]:
    return [fqn[:at] for at, char in enumerate(fqn) if char == "."]
