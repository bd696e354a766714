"""The options of a save, in one object from `Store.save` down to the C++ call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cairn._base.patterns import Patterns, pattern_list
from cairn.errors import Invalid


DEFAULT_DELTAS = 4  # of a chunk, before it is written completely


class SaveOptions(NamedTuple):
    """Options of `Store.save` and `Store.save_async`, which document them."""

    overwrite: bool = False
    incremental: bool = True
    base_step: int | None = None
    unchanged: Patterns = None
    chunk_bytes: int | None = None
    deltas: bool | int = False
    statistics: bool = False
    compress: bool | None = None
    share_equal: bool = False
    keys: Patterns = None
    prefix: str = ""
    ignore_frozen: bool = False
    allow_pickle: bool = False
    metrics: Mapping[str, float] | None = None
    tags: Iterable[str] = ()
    note: str = ""

    def annotations(self) -> dict[str, Any]:
        """The keyword arguments of `_cairn.Store.save` that only count on rank 0."""
        if isinstance(self.tags, str):
            raise Invalid(f"tags={self.tags!r}: must be several names, such as [{self.tags!r}]")
        metrics = [(name, float(value)) for name, value in dict(self.metrics or {}).items()]
        texts = [self.note, *self.tags, *(name for name, _ in metrics)]
        if not all(isinstance(text, str) for text in texts):
            raise Invalid("a note, tags and the names of metrics must be text")
        if any("\ud800" <= one <= "\udfff" for text in texts for one in text):
            raise Invalid("a note, tags and the names of metrics must be valid Unicode")
        return {"metrics": metrics, "note": self.note, "tags": list(self.tags)}

    def native(self) -> dict[str, Any]:
        """The keyword arguments of `_cairn.Store.save` that the caller chooses. They must be equal
        on all ranks."""
        return {
            "overwrite": self.overwrite,
            "incremental": self.incremental,
            "base_step": self.base_step,
            "unchanged": pattern_list(self.unchanged),
            "chunk_bytes": self.chunk_bytes,
            "deltas": self._max_deltas(),
            "statistics": self.statistics,
            "compress": self.compress,
            "share_equal": self.share_equal,
        }

    def _max_deltas(self) -> int:
        if isinstance(self.deltas, bool):
            return DEFAULT_DELTAS if self.deltas else 0
        return self.deltas
