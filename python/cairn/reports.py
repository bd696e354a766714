"""The reports that the methods of a store return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cairn.errors import Corrupt


@dataclass(frozen=True)
class SaveReport:
    """The result of a save."""

    step: int
    logical_bytes: int
    """Bytes of all tensors. Shared memory is counted once."""
    written_bytes: int
    """Payload bytes that this save wrote to the store."""
    device_bytes: int
    """Payload bytes that this save copied from device memory to the host, without digests and
    without host copies that were made of tensors before the save."""
    direct_bytes: int
    """The part of ``written_bytes`` that GPUs wrote to the segments (GPUDirect Storage)."""
    chunks: int
    chunks_reused: int
    """Chunks recorded as references to bytes that the store already contained."""
    seconds: float


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
    direct_bytes: int
    """The part of ``bytes_read`` that GPUs read from the segments (GPUDirect Storage)."""
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
class DeleteReport:
    """The result of a delete."""

    steps: tuple[int, ...]
    segments: int
    """Number of segment files that no step uses any more."""
    freed_bytes: int
    """Length of these files and of the tables of the steps. Their disk space is freed when the
    grace period of the store has passed."""


@dataclass(frozen=True)
class RetentionPolicy:
    """Which steps a save keeps, in addition to those with tags."""

    keep_last: int
    keep_every: int
    keep_best: tuple[str, ...]


@dataclass(frozen=True)
class StepInfo:
    """What is recorded about a step."""

    step: int
    tags: tuple[str, ...]
    created_unix_ns: int
    """When it was saved; of a copy, when the source was."""
    ranks: int
    """Number of ranks that saved it."""
    base_step: int | None
    """The step with which it was compared."""
    tensors: int
    values: int
    logical_bytes: int
    """Bytes of all tensors; shared ones count once."""
    written_bytes: int
    """Bytes that the save wrote."""
    metrics: dict[str, float]
    note: str


@dataclass(frozen=True)
class MergeReport:
    """The result of a merge."""

    step: int
    logical_bytes: int
    """Bytes of all tensors of the new step. Shared memory is counted once."""
    written_bytes: int
    """Payload bytes that the merge wrote to the store."""
    bytes_read: int
    """Bytes read from storage, including rounding to pages."""
    chunks: int
    chunks_reused: int
    """Chunks recorded as references: those that are equal in all steps, and those of tensors that
    are not floating-point."""
    seconds: float


@dataclass(frozen=True)
class CompactReport:
    """The result of a compaction."""

    live_bytes: int
    """Payload that steps used before the compaction, each byte once."""
    segment_bytes: int
    """Length of all segments before the compaction."""
    old_segments: int
    old_bytes: int
    """Segments that were rewritten, and their length. Their disk space is freed when the grace
    period of the store has passed. With ``dry_run``: those that would be rewritten."""
    moved_bytes: int
    """The part of their payload that steps use."""
    new_segments: int
    new_bytes: int
    """Segments that were written, and their length."""
    folded_chunks: int
    """Number of chunks that were written without their deltas."""
    compressed_chunks: int
    rewritten_steps: int
    """Number of steps whose records were rewritten."""


@dataclass(frozen=True)
class CopiedStep:
    """What happened to one step of a copy."""

    step: int
    outcome: str
    """"copied"; "present", if the target had it already; "deleted", if the source was deleted
    during the copy, so that the target does not have it."""
    logical_bytes: int
    """Bytes of all chunks of the step."""
    copied_segments: int
    copied_bytes: int
    """Segments that were transferred, and their length."""
    reused_segments: int
    """Segments that the target had."""


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
    """Bytes of the contiguous tensor; 0 for plain values."""
    alias_of: str | None
    """FQN of the tensor that contains the bytes, if this one shares them."""
    value: Any
    """The plain value; ``None`` for tensors and for pickles, which are not loaded here."""


@dataclass(frozen=True)
class TensorStatistics:
    """What a save recorded about the values of a tensor (``save(..., statistics=True)``)."""

    count: int
    """Number of values. A float4_e2m1fn_x2 element has two; a complex number counts as its
    magnitude."""
    zeros: int
    nans: int
    infs: int
    """Positive and negative."""
    min: float
    max: float
    """Infinities included; NaN if every value is a NaN."""
    mean: float
    """Of the finite values; NaN if there are none."""

    @property
    def abs_max(self) -> float:
        """The largest magnitude."""
        return max(abs(self.min), abs(self.max))


@dataclass(frozen=True)
class KeyChange:
    """One key that differs between two steps."""

    kind: str
    """"added", "removed" or "changed"."""
    fqn: str
    is_tensor: bool
    changed_bytes: int
    """Bytes of the chunks that differ; all bytes of a key that was added or removed."""
    total_bytes: int
    detail: str
    """Human-readable: a change of dtype or shape, or the old and new value."""


@dataclass(frozen=True)
class Diff:
    """The differences between two steps."""

    changes: tuple[KeyChange, ...]
    unchanged_keys: int

    def _of(self, kind: str) -> tuple[str, ...]:
        return tuple(change.fqn for change in self.changes if change.kind == kind)

    @property
    def added(self) -> tuple[str, ...]:
        """FQNs that are only in the second step."""
        return self._of("added")

    @property
    def removed(self) -> tuple[str, ...]:
        """FQNs that are only in the first step."""
        return self._of("removed")

    @property
    def changed(self) -> tuple[str, ...]:
        """FQNs that are in both steps, with different contents, dtype or shape."""
        return self._of("changed")
