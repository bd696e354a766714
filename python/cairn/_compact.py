"""`CompactedStore`: the call of a store that rewrites its segments."""

from __future__ import annotations

import operator

from cairn import _cairn
from cairn.errors import Invalid
from cairn.reports import CompactReport


class CompactedStore:
    """The call of :class:`cairn.Store` that rewrites its segments."""

    _native: _cairn.Store

    def compact(
        self,
        *,
        max_dead: float = 0.15,
        fold: bool = False,
        max_rate: int | None = None,
        dry_run: bool = False,
    ) -> CompactReport:
        """Rewrites segments of which steps use only a part, and joins small segments. No step
        changes. The old segments are removed after the grace period (see :func:`cairn.open`).

        Saves, deletes and readers continue, so a thread of a training job may call this.
        In a multi-rank store rank 0 calls it alone. Ctrl-C ends it; what was committed remains.

        Args:
            max_dead: a segment is rewritten if steps do not use more than this part of it.
            fold: also writes chunks without deltas if no other step uses what their deltas are
                relative to, so that they are loaded faster.
            max_rate: limit in bytes of payload per second; by default there is none.
            dry_run: only reports what would be rewritten.

        Raises:
            Corrupt: a page that would be moved does not match its digest.
            Conflict: another process has taken over the store.
            Invalid: the store was opened for reading, or is being compacted; an argument is out of
                range.
            Unavailable: a storage failed.
        """
        if max_rate is not None and operator.index(max_rate) < 1:
            raise Invalid(f"max_rate={max_rate}: must be 1 or more")
        done = self._native.compact(
            max_dead=max_dead, fold=fold, max_rate=max_rate, dry_run=dry_run
        )
        return CompactReport(**done)
