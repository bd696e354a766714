"""`StreamedSaves`: the call of a store that saves a state tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cairn import _cairn
from cairn._base.steps import step_number
from cairn._mirror.mirrored_store import MirroredStore
from cairn._ranks.ranks import Ranks
from cairn._save.options import SaveOptions
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress
    from cairn._mirror.options import Mirrors
    from cairn._save.writer import Writer


class StreamedSaves(MirroredStore):
    """The call of :class:`cairn.Store` that saves a state which is never in memory as a whole."""

    _native: _cairn.Store
    _ranks: Ranks
    _writer: Writer | None = None
    """The writer that is open."""

    def _wait_for_last_save(self) -> None:
        raise NotImplementedError

    def _keep_pinned(self) -> None:
        raise NotImplementedError

    def writer(
        self,
        step: int,
        *,
        overwrite: bool = False,
        incremental: bool = True,
        base_step: int | None = None,
        chunk_bytes: int | None = None,
        deltas: bool | int = False,
        statistics: bool = False,
        compress: bool | None = None,
        allow_pickle: bool = False,
        metrics: Mapping[str, float] | None = None,
        tags: Iterable[str] = (),
        note: str = "",
        mirror: Mirrors | None = None,
        progress: Progress | None = None,
    ) -> Writer:
        """Saves a state tensor by tensor, which may be larger than memory (docs/streaming.md)::

            with store.writer(400) as writer:
                writer.add("model.wte.weight", tensor)
                writer.add("epoch", 3)

        Each tensor is written when it is added, and nothing of it is kept. At the end of the block
        the step is committed, and exists from then on. If the block raises, the step does not exist
        and what was written is removed. Other saves of this store fail in the meantime, and reads
        do not see the step. For the arguments, see :meth:`save`; ``share_equal`` and ``unchanged``
        have no meaning here. In a multi-rank store all ranks enter and leave the block together
        (:class:`cairn._save.writer.Writer`, which describes ``progress``).

        Raises, when the block is entered:
            Conflict: the step exists.
            Invalid: an argument is not valid, another writer is open, the store is read-only, or
                ranks disagree.
        """
        from cairn._save.writer import Writer

        options = SaveOptions(
            overwrite=overwrite,
            incremental=incremental,
            base_step=base_step,
            chunk_bytes=chunk_bytes,
            deltas=deltas,
            statistics=statistics,
            compress=compress,
            allow_pickle=allow_pickle,
            metrics=metrics, tags=tags, note=note,
        )
        number, mirrors = step_number(step), self._checked_mirrors(mirror)

        def begin() -> _cairn.StepPart:
            if self._writer is not None:
                raise Invalid("a writer of this store is open: leave its block first", step=number)
            self._wait_for_last_save()
            if self._ranks.rank == 0:
                self._keep_pinned()
            part = _cairn.StepPart(self._native)
            self._writer = writer
            return part

        def end(committed: bool) -> None:
            self._writer = None
            if committed:
                self._mirrors.submit(number, mirrors, None, overwrite)

        shown = self._progress if progress is None else progress
        writer = Writer(number, options, self._ranks, begin, end, shown)
        return writer
