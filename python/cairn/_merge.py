"""`MergeableStore`: the call of a store that computes means of steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cairn import _cairn
from cairn._base.steps import step_number
from cairn._base.watched import Watched, watched
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn.reports import MergeReport


class MergeableStore(Watched):
    """The call of :class:`cairn.Store` that computes means of steps."""

    _native: _cairn.Store

    def _wait_for_last_save(self) -> None:
        raise NotImplementedError

    def _keep_pinned(self) -> None:
        raise NotImplementedError

    @watched("merging", "merge")
    def merge(
        self,
        steps: Iterable[int],
        *,
        into: int,
        weights: Iterable[float] | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> MergeReport:
        """Makes the step ``into`` of weighted means of the floating-point tensors of ``steps``.
        Everything else comes from the last of them: other tensors, plain values, structure and
        chunks.

        The steps have the same keys, dtypes and shapes; they may be sharded differently. The mean
        is computed in float32 (float64 for float64) and rounded once, chunk by chunk in bounded
        memory. Chunks that are equal in all steps are not written again. In a multi-rank store
        rank 0 calls it alone. Ctrl-C ends it. See docs/merging.md.

        Args:
            weights: one per step, divided by their sum; by default they are equal.
            overwrite: replaces the step ``into`` atomically if it exists, which may be one of
                ``steps``.
            progress: as in :func:`cairn.open`, for this call.

        Raises:
            NotFound: a step does not exist.
            Conflict: the step ``into`` exists; one of ``steps`` was deleted in the meantime;
                another process has taken over the store.
            Corrupt: bytes of a step are damaged.
            Invalid: fewer than two steps; their keys, dtypes, shapes or shared memory differ
                (``key`` names the first); they differ in a tensor of 8-bit or 4-bit floats; the
                weights have no positive sum; the store was opened for reading.
        """
        from cairn.reports import MergeReport

        numbers = [step_number(step) for step in steps]
        factors = None if weights is None else [float(weight) for weight in weights]
        if factors == []:
            raise Invalid("weights is empty; leave it out for equal weights")
        self._wait_for_last_save()
        self._keep_pinned()
        done = self._native.merge(
            numbers, into=step_number(into), weights=factors or [], overwrite=overwrite
        )
        return MergeReport(step_number(into), *done)
