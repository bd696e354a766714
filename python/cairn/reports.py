"""The reports that the methods of a store return, and the events that observers receive.

Those that C++ makes are classes of the extension module. Defining the dataclasses takes some
milliseconds, so this module is imported when one of them is first used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cairn._cairn import CompactReport as CompactReport
from cairn._cairn import CopiedStep as CopiedStep
from cairn._cairn import Diff as Diff
from cairn._cairn import KeyChange as KeyChange
from cairn._cairn import MergeReport as MergeReport
from cairn._cairn import ParentStep as ParentStep
from cairn._cairn import SaveReport as SaveReport
from cairn._cairn import StepInfo as StepInfo
from cairn._cairn import TensorStatistics as TensorStatistics
from cairn.errors import Corrupt


@dataclass(frozen=True)
class LoadReport:
    """The result of a load."""

    step: int
    missing: tuple[str, ...]
    """FQNs of the state that the step lacks; these leaves are unchanged."""
    unexpected: tuple[str, ...]
    """FQNs of the step that the state lacks; they were not read."""
    bytes_read: int
    """Bytes read from storage, including rounding to pages."""
    seconds: float
    skipped: Mapping[str, Corrupt] = field(default_factory=dict)
    """With ``skip_damaged=True``: the errors of the damaged keys, by FQN. These leaves are
    unchanged."""


@dataclass(frozen=True)
class PullReport:
    """The result of a pull."""

    step: int
    """The step that the state contains now."""
    since: int
    changed: tuple[str, ...]
    """FQNs of the tensors and values of the state that differ between the two steps, ascending. A
    tensor that shares memory with another one counts as changed if the other one has changed."""
    missing: tuple[str, ...]
    """FQNs of the state that the step lacks; these leaves are unchanged."""
    unexpected: tuple[str, ...]
    """FQNs of the step that the state lacks; they were not read."""
    compared_bytes: int
    """Bytes in memory that were compared with the step ``since``."""
    bytes_read: int
    """Bytes read from storage, including rounding to pages and page digests."""
    seconds: float


@dataclass(frozen=True)
class CheckReport:
    """Whether a state in memory equals a step (:meth:`cairn.Store.check`)."""

    step: int
    different: Mapping[str, str]
    """What differs, by FQN: the number of pages of 64 KiB and the index of the first element of the
    first one, the shapes, or the values."""
    not_comparable: Mapping[str, str]
    """Why a tensor was not compared, by FQN: it has another dtype than in the step, is on the meta
    device, or is something that cannot be saved."""
    missing: tuple[str, ...]
    """FQNs of the state that the step lacks."""
    unexpected: tuple[str, ...]
    """FQNs of the step that the state lacks."""
    compared_bytes: int
    """Bytes in memory that were compared, on all ranks."""
    bytes_read: int
    """Bytes read from storage, except for records: digests of pages, and payload of pages that a
    rank holds only in part."""
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether the state is the step: the same keys, of which all were compared, and equal."""
        return not (self.different or self.not_comparable or self.missing or self.unexpected)


@dataclass(frozen=True)
class StateReport:
    """What a save of a state would do (:meth:`cairn.Store.check_state`)."""

    refused: Mapping[str, str]
    """Why a leaf cannot be saved, by FQN."""
    first_bytes: int
    """Bytes of all tensors on all ranks, each once: what a save writes if the store has none of
    them, and at most what any save writes, without records and compression."""
    next_bytes: int | None
    """Bytes of the pages that differ from the latest step now, which the next save would write;
    ``None`` if there is no step."""
    bytes_per_second: float | None
    """What the disk of the store has just taken from one thread; ``None`` if this is not tried: for
    a bucket, a pool, or a store that is open for reading."""
    first_seconds: float | None
    next_seconds: float | None
    """The time to write these bytes at this rate, which other programs and ranks share."""
    only_on: Mapping[str, tuple[int, ...]]
    """The ranks that have a key which others lack, by FQN."""
    differing: Mapping[str, tuple[int, ...]]
    """The ranks that hold something else under a key than the lowest rank with it, by FQN: what a
    save refuses or warns of (docs/python-ranks.md). Of large tensors, samples are compared."""


@dataclass(frozen=True)
class DeleteReport:
    """The result of a delete."""

    steps: tuple[int, ...]
    segments: int
    """Number of segment files that no step uses any more."""
    freed_bytes: int
    """Length of the files that the call has removed: of these steps without a grace period, and of
    earlier ones whose grace period has passed."""
    waiting_bytes: int
    """Length of the files, of these steps and of earlier ones, that the next save, delete, close or
    open for writing after the grace period removes."""


@dataclass(frozen=True)
class RetentionPolicy:
    """Which steps a save keeps, in addition to those with tags."""

    keep_last: int
    keep_every: int
    keep_best: tuple[str, ...]


@dataclass(frozen=True)
class KeyInfo:
    """One leaf of a step."""

    kind: str
    """"tensor" (torch), "ndarray" or "scalar" (numpy), or "value"."""
    type: str
    """Name of the Python type: "torch.Tensor", "numpy.ndarray", "int", "str", ..."""
    dtype: str | None
    """torch's name of the dtype, without "torch."; ``None`` for plain values."""
    shape: tuple[int, ...] | None
    """Extents in elements; ``None`` for plain values."""
    nbytes: int
    """Bytes of the contiguous tensor, or of a long plain value; 0 for other plain values."""
    alias_of: str | None
    """FQN of the tensor that contains the bytes, if this one shares them."""
    value: Any
    """The plain value; ``None`` for tensors, pickles and values of more than 4 KiB, which are not
    loaded here."""


@dataclass(frozen=True)
class MirrorReport:
    """A step that a mirror has received (:class:`cairn.StoreEvent`)."""

    step: int
    outcome: str
    """"copied"; "present", if the mirror had it already."""
    logical_bytes: int
    """Bytes of all chunks of the step."""
    copied_segments: int
    copied_bytes: int
    """Segments that were transferred, and their length."""
    reused_segments: int
    """Segments that the mirror had."""
    attempts: int
    """1, or more if attempts have failed before."""
    seconds: float
    """From the begin of the first attempt until the mirror had the step."""
    lag_seconds: float
    """From the save of the step until the mirror had it, by the clocks of the machines."""


@dataclass(frozen=True)
class MirrorStatus:
    """The state of one mirror of a store."""

    address: str
    last_step: int | None
    """The highest step that this process has copied; None if there is none yet."""
    step: int | None
    """The step whose copy runs, or waits for its save or for another attempt."""
    copied_bytes: int
    total_bytes: int
    """How much of the segments of this step that the mirror lacked was copied, and their length."""
    waiting: tuple[int, ...]
    """The steps that wait for their copy."""
    error: Exception | None
    """The last error, until a copy succeeds."""


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
    """What the call returned; for a save, the part of this rank. None if it failed."""
    error: Exception | None
    """What the call raised; None if it succeeded."""
    info: StepInfo | None
    """What is recorded about a step that was saved: tags, metrics, and the bytes of all ranks. None
    for other kinds, and if the step was deleted in the meantime."""
    health: StepHealth | None
    """Of a step that was saved with ``SaveTuning(statistics=True)``, on rank 0."""
    free_bytes: int | None
    """Free space of the file system of the store, or of the mirror, if it is a directory."""
    retries: int | None = None
    """Requests to the bucket of the store, or of the mirror, that were sent again in the meantime,
    also for other calls of this process; None if it is not in a bucket."""
    mirror: str | None = None
    """The mirror, of the kind "mirror". Paths are absolute."""
    mirror_number: int | None = None
    """Of the kind "mirror": 1 for the mirror that copies from the store, 2 for the next one."""
