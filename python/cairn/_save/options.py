"""What the caller asks of a save, in one object from `Store.save` down to the C++ call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cairn._base.patterns import Patterns


DEFAULT_DELTAS = 4  # of a chunk, before it is written completely


@dataclass(frozen=True)
class SaveOptions:
    """Options of `Store.save` and `Store.save_async`, which document them."""

    overwrite: bool = False
    incremental: bool = True
    base_step: int | None = None
    chunk_bytes: int | None = None
    deltas: bool | int = False
    keys: Patterns = None
    prefix: str = ""
    ignore_frozen: bool = False
    allow_pickle: bool = False

    def native(self) -> dict[str, Any]:
        """The keyword arguments of `_cairn.Store.save` that the caller chooses. They must be equal
        on all ranks."""
        return {
            "overwrite": self.overwrite,
            "incremental": self.incremental,
            "base_step": self.base_step,
            "chunk_bytes": self.chunk_bytes,
            "deltas": self._max_deltas(),
        }

    def _max_deltas(self) -> int:
        if isinstance(self.deltas, bool):
            return DEFAULT_DELTAS if self.deltas else 0
        return self.deltas
