"""`LiveUpdates`: a process follows a store and keeps a state in memory at its newest step."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base import devices
from cairn._base.patterns import Patterns, all_patterns, clean_prefix, pattern_list
from cairn._base.steps import step_number
from cairn._base.watched import watched
from cairn._load.load import Load, LoadOptions
from cairn._load.multi_rank_load import agree_on_step, plan_together
from cairn._load.step_loader import StepLoader
from cairn._load.step_reader import check_match
from cairn._ranks.ranks import Ranks
from cairn._save.stateful import StatefulAdapter
from cairn._tensors.contents import ValueLeaf, leaf_at
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn.reports import PullReport


# Interval of requests to a storage that does not notify. A request costs two calls of stat for a
# directory on a local disk, and two or three requests for a bucket.
_POLL_SECONDS = 1.0


class LiveUpdates(StepLoader):
    """The part of :class:`cairn.Store` that updates models in use."""

    def wait(self, after: int | None = None, timeout: float = 600.0) -> int | None:
        """Waits for a step that is greater than ``after`` (for any step, if that is None).

        Returns the newest step, or None if there is none after ``timeout`` seconds. A directory
        that is written on the same machine, and a Ceph pool, notify the waiting process of a new
        step; other stores are asked once a second. In a multi-rank store each rank waits alone.
        """
        if after is not None:
            after = step_number(after)
        if not timeout >= 0:
            raise Invalid(f"timeout={timeout!r}: a number of seconds is needed, at least 0")
        deadline = time.monotonic() + timeout
        while True:
            newest = max(self.steps(), default=None)
            if newest is not None and (after is None or newest > after):
                return newest
            now = time.monotonic()
            if now >= deadline:
                return None
            self._await_change(min(deadline, now + _POLL_SECONDS))

    def _await_change(self, deadline: float) -> None:
        """Waits until the storage announces a change, or until the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            if self._native.await_change(left):
                return

    @watched("updating", "pull")
    def pull(
        self,
        state: Any,
        *,
        since: int,
        step: int | str | None = None,
        strict: bool = True,
        keys: Patterns = None,
        prefix: str = "",
        ignore_frozen: bool = False,
        allow_pickle: bool = False,
        progress: Progress | None = None,
    ) -> PullReport:
        """Updates a ``state`` that contains the step ``since`` to ``step`` (by default the latest).

        Only what differs between the two steps is read, and written to the memory of the state.
        Contiguous tensors in host memory are first compared with ``since``, all of them before the
        first is changed; of these, the 64 KiB pages that differ are read. Other tensors (strided
        ones, on devices, aliases in the step, parts of a DTensor) are not compared, and read
        completely if they differ.
        If both steps are the same, nothing is compared or read, unless the state has tensors on the
        meta device, which are created as by :meth:`Store.load`. The other arguments, and the rules
        for containers, objects with ``load_state_dict`` and several ranks, are the same as for
        :meth:`Store.load`.

        If the call is interrupted or fails while it reads, tensors may contain pages of both steps.
        Then load the state completely; another pull refuses it.

        Raises:
            NotFound: one of the steps does not exist any more; no key matches ``keys``; or (strict)
                the step lacks keys of the state.
            Invalid: a tensor does not contain the bytes of ``since`` (``key`` names it), and this
                process has changed nothing; or as for :meth:`Store.load`.
            Corrupt: the bytes differ from the written bytes.
            Unavailable: an I/O error; a rank failed, died, or did not respond in time.
        """
        since = step_number(since)
        clean = clean_prefix(prefix)
        native, number = self._both(since, self._number(step))
        adapters: list[StatefulAdapter] = []

        def plan() -> _Pull:
            adapters.append(StatefulAdapter(state, clean, ignore_frozen))
            patterns = all_patterns(pattern_list(keys), clean, adapters[0].frozen)
            options = LoadOptions(strict, allow_pickle, patterns, None, False)
            base, contents = (native.contents(one, patterns) for one in (since, number))
            if pattern_list(keys) or clean:
                check_match(patterns, native, contents)
            return _Pull(native, adapters[0].state, base, contents, options, self._ranks)

        pull = plan_together(self._ranks, plan)
        report: PullReport = self._ranks.run_together(pull.run)
        self._ranks.run_together(adapters[0].load_into_objects)
        self._ranks.warn()
        return report

    def _both(self, since: int, step: int | None) -> tuple[_cairn.Store, int | None]:
        """The store that has both steps, and the step. Collective."""
        if self._tiers is None or self._ranks.world_size > 1:  # ranks use their own store only
            return self._native, agree_on_step(self._ranks, self._native, step)
        newest = max(self._tiers.steps(), default=None) if step is None else step_number(step)
        if newest is None:
            return self._native, None  # which raises NotFound
        return self._tiers.find_both(since, newest) or self._native, newest


class _Pull(Load):
    """One update in place: the constructor plans it and changes nothing, `run` executes it."""

    def __init__(
        self,
        native: _cairn.Store,
        state: Any,
        base: _cairn.Contents,
        contents: _cairn.Contents,
        options: LoadOptions,
        ranks: Ranks,
    ) -> None:
        super().__init__(native, state, contents, options, ranks)
        self._base = base

    def run(self) -> PullReport:  # type: ignore[override]
        """Executes the update."""
        # For what follows the read: once the state is filled, an import must not fail.
        import heapq  # noqa: F401
        import pickle  # noqa: F401

        from cairn.reports import PullReport

        old, new = self._base, self._contents
        changed: list[str] = []
        compared_bytes, bytes_read, seconds = 0, 0, 0.0
        is_same_step = (old.step, old.generation) == (new.step, new.generation)
        if not is_same_step or self._others.has_new_tensors:
            changed, compared_bytes, bytes_read, seconds = self._native.update(
                old.info,
                new.info,
                self.requests,
                devices.current_streams(self.requests.devices()),
                self._others.has_new_shards,
            )
            self._others.finish()
            in_memory = set(changed)
            changed += (name for name, filled in self._plan.tied() if filled in in_memory)
            changed += self._changed_values()
        return PullReport(
            new.step,
            old.step,
            tuple(sorted(set(changed))),
            self._missing,
            self.unexpected,
            compared_bytes,
            bytes_read,
            seconds,
        )

    def _changed_values(self) -> list[str]:
        """FQNs of the values of the state that the steps do not have in common, bit for bit."""
        old = dict(_values(self._base))
        unexpected = set(self.unexpected)
        return [
            fqn
            for fqn, value in _values(self._contents)
            if old.get(fqn) != value and fqn not in unexpected
        ]


def _values(contents: _cairn.Contents) -> list[tuple[str, bytes]]:
    """The plain values of a step by FQN, in a form that is equal only if all bits are."""
    leaves = (leaf_at(contents, index) for index in range(len(contents)))
    values = (leaf for leaf in leaves if isinstance(leaf, ValueLeaf))
    import pickle

    return [(leaf.fqn, pickle.dumps(_plain(leaf.value))) for leaf in values]


def _plain(value: Any) -> Any:
    return value.data if isinstance(value, _cairn.Pickle) else value
