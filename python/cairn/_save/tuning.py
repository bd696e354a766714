"""`SaveTuning`: the table of the options of a save that few programs need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cairn._base.patterns import Patterns, pattern_list

DEFAULT_DELTAS = 4  # of a chunk, before it is written completely


@dataclass(frozen=True)
class SaveTuning:
    """How a save finds what has not changed, and how it stores what has.

    The ``tuning=`` of :meth:`cairn.Store.save`; ``dataclasses.replace`` changes a part of one. In a
    multi-rank store all ranks pass the same, except for what is of rank 0.
    """

    incremental: bool = True
    """``False`` also writes chunks that are equal to those of the base step."""
    base_step: int | None = None
    """The step to compare with; by default the one that this store has loaded in place since its
    last save, otherwise the latest."""
    unchanged: Patterns = None
    """Patterns of tensors that are as in the base step (docs/torch-training.md)."""
    chunk_bytes: int | None = None
    """Size of the chunks that tensors are split into; by default 4 MiB."""
    deltas: bool | int = False
    """Writes only changed elements, 4 times or N (to 64) per chunk (docs/deltas.md)."""
    statistics: bool = False
    """Records statistics of the values of each chunk (:meth:`cairn.Store.statistics`)."""
    compress: bool | Literal["auto"] | None = None
    """As in docs/compression.md; by default as :meth:`cairn.Store.set_compression` has set.
    ``"auto"`` compresses unless saves through this store are faster without, as measured."""
    share_equal: bool = False
    """Stores chunks with equal bytes once, whatever their keys are (docs/shared-chunks.md)."""
    ignore_frozen: bool = False
    """Excludes parameters that require no gradient, of modules in the state."""
    device_snapshot: bool = False
    """``save_async`` first copies what has changed within the device's memory, if enough is free,
    so that ``wait_staged`` returns after that copy."""
    records: Mapping[str, bytes] | None = None
    """Of rank 0: bytes to store with the step by name (:meth:`cairn.Store.record`)."""
    differing: Literal["refuse", "warn", "ignore"] | None = None
    """What happens if ranks hold different plain tensors or values under one key, of which a step
    stores those of one rank. By default, tensors are refused, and the first save with such values,
    or buffers of modules, warns. Sharded tensors are not compared. Later saves compare samples of
    tensors with more than 64 elements, and warn (docs/python-ranks.md)."""
    parent: int | None = None
    """Of rank 0: the step from which this one continues; by default the one that this store has
    loaded or saved last, otherwise its newest one (docs/versions.md)."""
    run: str | None = None
    """Of rank 0: 32 hex digits, such as ``uuid.uuid4().hex``; by default the run of the parent."""

    def native(self) -> dict[str, Any]:
        """The keyword arguments of `_cairn.Store.save`. They must be equal on all ranks, so what is
        of rank 0 is not among them (`SaveOptions.annotations`)."""
        arguments = {**vars(self), "unchanged": pattern_list(self.unchanged)}
        for name in ("ignore_frozen", "records", "differing", "parent", "run"):
            del arguments[name]
        if isinstance(self.deltas, bool):
            arguments["deltas"] = DEFAULT_DELTAS if self.deltas else 0
        if self.compress == "auto":
            arguments |= {"compress": None, "compress_if_fast": True}
        return arguments
