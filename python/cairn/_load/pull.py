"""Live updates: waits for a newer step, and updates a state in memory to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base import devices
from cairn._base.addresses import step_number
from cairn._base.patterns import patterns_for
from cairn._load.in_place import own_step, run_load
from cairn._load.load import Load, LoadOptions, Source
from cairn._opened.opened import Opened
from cairn._ranks.ranks import Ranks
from cairn._tensors.contents import ValueLeaf, leaf_at
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn.reports import PullReport


# How often a storage is asked that does not notify. Of a directory on a local disk, this costs two
# calls of stat; of a bucket, two or three requests.
_POLL_SECONDS = 1.0


def wait(opened: Opened, after: int | None, timeout: float) -> int | None:
    """See `Store.wait`."""
    if after is not None:
        after = step_number(after)
    if not timeout >= 0:
        raise Invalid(f"timeout={timeout!r}: a number of seconds is needed, at least 0")
    deadline = time.monotonic() + timeout
    while True:
        newest = opened.tiers.latest()
        if newest is not None and (after is None or newest > after):
            return newest
        # The run has gone back to a lower step.
        if newest is not None and newest != after and after in opened.tiers.steps():
            return newest
        now = time.monotonic()
        if now >= deadline:
            return None
        _await_change(opened.native, min(deadline, now + _POLL_SECONDS))


def _await_change(native: _cairn.Store, deadline: float) -> None:
    """Waits until the storage announces a change, or until the deadline."""
    while (left := deadline - time.monotonic()) > 0:
        if native.await_change(left):
            return


def pull(
    opened: Opened, state: Any, since: int, step: int | str | None, options: LoadOptions
) -> PullReport:
    """See `Store.pull`."""
    since, ranks = step_number(since), opened.ranks
    number = opened.number(step)
    ranks.begin("pull")
    native, number = _both(opened, since, number)

    def plan(state: Any, source: Source) -> _Pull:
        base = native.contents(since, source.options.selected)
        return _Pull(native, state, base, source, ranks)

    report = run_load(opened, (native, number), plan, state, options, is_update=True)
    ranks.warn()
    return report


def _both(opened: Opened, since: int, step: int | None) -> tuple[_cairn.Store, int | None]:
    """The store that has both steps, and the step. Collective."""
    tiers = opened.tiers
    if not tiers.others or opened.ranks.world_size > 1:  # ranks use their own store only
        return opened.native, own_step(opened, step)
    newest = tiers.latest() if step is None else step_number(step)
    if newest is None:
        return opened.native, None  # which raises NotFound
    return tiers.find_both(since, newest) or opened.native, newest


class _Pull(Load):
    """One update in place: the constructor plans it and changes nothing, `run` executes it."""

    def __init__(
        self, native: _cairn.Store, state: Any, base: _cairn.Contents, source: Source, ranks: Ranks
    ) -> None:
        self._base, new = base, source.contents
        self._is_same_step = (base.step, base.generation) == (new.step, new.generation)
        self._new_values: list[str] = []
        super().__init__(native, state, source, ranks)

    def run(self) -> PullReport:  # type: ignore[override]
        """Executes the update."""
        from cairn.reports import PullReport

        old, new = self._base, self._contents
        changed: list[str] = []
        compared_bytes, bytes_read, seconds = 0, 0, 0.0
        if not self._is_same_step or self._others.has_new_tensors:
            self.mark_tensors()
            done = self._native.update(
                old.info,
                new.info,
                self.requests,
                devices.current_streams(self.requests.devices()),
                self._others.has_new_shards,
            )
            compared_bytes, bytes_read = done.compared_bytes, done.bytes_read
            changed, seconds = list(done.changed), done.seconds
            self._others.finish()
            in_memory = set(changed)
            changed += (name for name, filled in self._plan.tied() if filled in in_memory)
            changed += self._new_values
        return PullReport(
            step=new.step,
            since=old.step,
            changed=tuple(sorted(set(changed))),
            missing=self._missing,
            unexpected=self.unexpected,
            compared_bytes=compared_bytes,
            bytes_read=bytes_read,
            seconds=seconds,
        )

    def _changed_values(self) -> list[str]:
        """FQNs of the values of the state that the steps do not have in common, bit for bit."""
        if self._is_same_step:
            return []
        old = _values(self._base)
        changed, long = [], []
        for fqn, new in ((leaf.fqn, leaf.stored) for leaf in self._others.values.values()):
            # Long values are compared by their digests.
            both = [old.get(fqn), new]
            if all(isinstance(value, _cairn.LongValue) for value in both):
                long.append(fqn)
            elif fqn not in old or _bits(both[0]) != _bits(both[1]):
                changed.append(fqn)
        if long:
            patterns = [each for fqn in long for each in patterns_for(fqn)]
            diff = self._native.compare(self._base.step, self._contents.step, patterns)
            changed += set(long).intersection(diff.changed)
        self._new_values = changed
        return changed


def _values(contents: _cairn.Contents) -> dict[str, Any]:
    leaves = (leaf_at(contents, index) for index in range(len(contents)))
    return {leaf.fqn: leaf.stored for leaf in leaves if isinstance(leaf, ValueLeaf)}


def _bits(value: Any) -> bytes | None:
    """A form of a value that is equal only if all bits are; None: it is long."""
    import pickle

    if isinstance(value, _cairn.LongValue):
        return None
    return pickle.dumps(value.data if isinstance(value, _cairn.Pickle) else value)
