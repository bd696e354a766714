"""Records of a store about steps, and the reports of calls that change or copy them."""

from __future__ import annotations

from dataclasses import dataclass


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
    """The steps that a save keeps, in addition to steps with tags."""

    keep_last: int
    keep_every: int
    keep_best: tuple[str, ...]


@dataclass(frozen=True)
class StepInfo:
    """The record of a step."""

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
    """Chunks recorded as references: chunks that are equal in all steps, and chunks of tensors that
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
    """The outcome of one step of a copy."""

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
