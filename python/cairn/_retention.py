"""`Retention`: the calls of a store that delete steps and free their space."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from cairn import _cairn
from cairn._base.retention import best_texts
from cairn._base.steps import step_number
from cairn._base.watched import watched
from cairn._mirror.mirrored_store import MirroredStore
from cairn._ranks.ranks import Ranks
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn.reports import CompactReport, DeleteReport, RetentionPolicy


class Retention(MirroredStore):
    """The calls of :class:`cairn.Store` that delete steps and free their space."""

    _native: _cairn.Store
    _ranks: Ranks
    _wait_for_last_save: Callable[[], None]

    @watched("", "delete")
    def delete(self, *steps: int) -> DeleteReport:
        """Deletes complete steps in one commit. Bytes that other steps refer to remain. The files
        of the others are removed after the grace period (see :func:`cairn.open`).

        Raises NotFound, with nothing deleted, if one of the steps does not exist; Invalid if the
        store was opened for reading.
        """
        return self._delete(lambda: steps)

    @watched("", "prune")
    def prune(
        self,
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: str | Iterable[str] = (),
    ) -> DeleteReport:
        """Deletes all steps except the last ``keep_last``, the multiples of ``keep_every``, the
        best by a metric, those with tags, and those that wait for their copy to a mirror. Without
        arguments, the policy of the store applies (:meth:`set_policy`).

        Args:
            keep_best: ``"val_loss:3"`` keeps the 3 steps with the lowest values of this metric
                (see :meth:`save`), ``"accuracy:3:max"`` those with the highest; or several of
                these. Steps without the metric are not kept by it.

        Raises Invalid if one is negative, or if none is given and the store has no policy.
        """
        best = best_texts(keep_best)
        if keep_last == keep_every == len(best) == 0:
            keep_last, keep_every, best = self._native.retention()
        if keep_last < 0 or keep_every < 0 or keep_last + keep_every + len(best) == 0:
            raise Invalid(
                "prune: state keep_last, keep_every or keep_best, none of them negative; the store "
                "has no policy"
            )

        def doomed() -> list[int]:
            pinned = self._pinned()
            steps = self._native.steps_to_delete(keep_last, keep_every, best, None)
            return [step for step in steps if step not in pinned]

        return self._delete(doomed)

    def set_policy(
        self,
        *,
        keep_last: int = 0,
        keep_every: int = 0,
        keep_best: str | Iterable[str] = (),
    ) -> None:
        """Sets which steps remain, for all processes that save to this store from now on: each save
        deletes, in its commit, the steps that :meth:`prune` with these arguments would delete,
        except newer ones. Without arguments, saves delete nothing any more.

        A copy of a step to this store is not such a save. In a multi-rank store rank 0 calls it
        alone. Raises Invalid if a number is negative, a text cannot be understood, or the store was
        opened for reading.
        """
        if keep_last < 0 or keep_every < 0:
            raise Invalid("set_policy: keep_last and keep_every must not be negative")
        self._wait_for_last_save()
        self._native.set_retention(keep_last, keep_every, best_texts(keep_best))

    def policy(self) -> RetentionPolicy | None:
        """The policy that saves apply (:meth:`set_policy`), or None."""
        from cairn.reports import RetentionPolicy

        keep_last, keep_every, keep_best = self._native.retention()
        if keep_last == keep_every == len(keep_best) == 0:
            return None
        return RetentionPolicy(keep_last, keep_every, tuple(keep_best))

    def set_compression(self, compress: bool) -> None:
        """Sets whether saves to this store compress what they write, unless they state otherwise:
        ``save``, ``save_async``, ``dcp.save``, imports and saves of other processes from now on.
        Stored steps do not change; :meth:`compact` compresses it.

        In a multi-rank store rank 0 calls it alone. Raises Invalid if the store was opened for
        reading.
        """
        self._wait_for_last_save()
        self._native.set_compression(compress)

    def compression(self) -> bool:
        """Whether saves compress by default (:meth:`set_compression`)."""
        return self._native.compresses_saves()

    @watched("compacting", "compact")
    def compact(
        self,
        *,
        max_dead: float = 0.15,
        fold: bool = False,
        compress: bool = False,
        max_rate: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> CompactReport:
        """Rewrites segments of which steps use only a part, and joins small segments. No step
        changes. The old segments are removed after the grace period (see :func:`cairn.open`).

        Saves, deletes and readers continue, so a thread of a training job may call this.
        In a multi-rank store rank 0 calls it alone. Ctrl-C ends it; what was committed remains.

        Args:
            max_dead: a segment is rewritten if steps do not use more than this part of it.
            fold: also writes chunks without deltas if no other step uses what their deltas are
                relative to, so that they are loaded faster.
            compress: also compresses chunks (docs/compression.md), for archives. Loads of them
                take longer.
            max_rate: limit in bytes of payload per second; by default there is none.
            dry_run: only reports what would be rewritten.
            progress: as in :func:`cairn.open`, for this call.

        Raises:
            Corrupt: a page that would be moved does not match its digest.
            Conflict: another process has taken over the store.
            Invalid: the store was opened for reading, or is being compacted; an argument is out of
                range.
            Unavailable: a storage failed.
        """
        from cairn.reports import CompactReport

        if max_rate is not None and operator.index(max_rate) < 1:
            raise Invalid(f"max_rate={max_rate}: must be 1 or more")
        done = self._native.compact(
            max_dead=max_dead, fold=fold, compress=compress, max_rate=max_rate, dry_run=dry_run
        )
        return CompactReport(**done)

    def _delete(self, choose: Callable[[], Iterable[int]]) -> DeleteReport:
        """Deletes the steps that ``choose`` returns on rank 0. Collective."""
        import json

        from cairn.reports import DeleteReport

        self._wait_for_last_save()

        def work() -> bytes:
            if self._ranks.rank > 0:
                return b""
            numbers = tuple(step_number(step) for step in choose())
            if not numbers:
                return json.dumps([numbers, 0, 0]).encode()
            _, segments, freed_bytes = self._native.delete(numbers, False)
            return json.dumps([numbers, segments, freed_bytes]).encode()

        numbers, segments, freed_bytes = json.loads(self._ranks.exchange(work)[0])
        return DeleteReport(tuple(numbers), segments, freed_bytes)
