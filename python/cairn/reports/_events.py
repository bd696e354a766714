"""The events that observers of a store receive."""

from __future__ import annotations

from dataclasses import dataclass

from cairn.reports._loads import LoadReport, PullReport
from cairn.reports._saves import SaveReport
from cairn.reports._steps import (
    CompactReport,
    DeleteReport,
    MergeReport,
    MirrorReport,
    StepInfo,
)


@dataclass(frozen=True)
class StepHealth:
    """Values that are not finite, from the statistics that a save has recorded."""

    nan: int
    inf: int
    """Numbers of elements of all tensors with statistics."""
    tensors: int
    """Number of tensors with statistics."""
    names: tuple[str, ...]
    """FQNs of tensors with NaN or infinities, in the order of the state, at most 10."""


@dataclass(frozen=True)
class StoreEvent:
    """A call of a store, or a copy to a mirror, that has ended (:meth:`cairn.Store.observe`)."""

    kind: str
    """"save", "load", "pull", "delete", "prune", "compact" or "merge"; "mirror" for a step that was
    copied to a mirror, or whose copy has failed."""
    address: str
    """The store that is observed. Paths are absolute."""
    rank: int
    world_size: int
    step: int | None
    """The step that was saved, loaded or copied; None for other kinds, and if it is not known."""
    unix_ns: int
    """When it ended, in nanoseconds since 1970."""
    seconds: float
    """From the begin of the call until its result was complete: for a save, until it was durable.
    The time in which a background save waits for the one before it is included."""
    stall_seconds: float
    """How long the call kept its caller waiting. For other calls than ``save_async`` this is
    ``seconds``. Waits for copies from devices (:meth:`SaveHandle.wait_staged`) are not included."""
    in_background: bool
    report: (
        SaveReport
        | LoadReport
        | PullReport
        | DeleteReport
        | CompactReport
        | MergeReport
        | MirrorReport
        | None
    )
    """The result of the call; for a save, the part of this rank. None if it failed."""
    error: Exception | None
    """The exception of the call; None if it succeeded."""
    info: StepInfo | None
    """The record of a step that was saved: tags, metrics, and the bytes of all ranks. None for
    other kinds, and if the step was deleted in the meantime."""
    health: StepHealth | None
    """Health of a step that was saved with ``statistics=True``, on rank 0."""
    free_bytes: int | None
    """Free space of the file system of the store, or of the mirror, if it is a directory."""
    retries: int | None = None
    """Requests to the bucket of the store, or of the mirror, that were sent again in the meantime,
    also for other calls of this process; None if it is not in a bucket."""
    mirror: str | None = None
    """The mirror, of the kind "mirror". Paths are absolute."""
    mirror_number: int | None = None
    """For the kind "mirror": 1 if the mirror copies from the store, 2 for the next one."""
