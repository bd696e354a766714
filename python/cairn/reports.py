"""What the calls of a Store return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SaveReport:
    """What a save did."""

    step: int
    logical_bytes: int
    """Bytes of all tensors; memory that several share is counted once."""
    written_bytes: int
    """Payload bytes that this save added to the store."""
    device_bytes: int
    """Payload bytes that this save brought from device memory to the host; digests are not counted,
    nor are host copies that are made of tensors before the save."""
    direct_bytes: int
    """Of ``written_bytes``, what GPUs wrote to the segments themselves (GPUDirect Storage)."""
    chunks: int
    chunks_reused: int
    """Chunks recorded as references to bytes that the store had already."""
    seconds: float


@dataclass(frozen=True)
class LoadReport:
    """What a load did."""

    step: int
    missing: tuple[str, ...]
    """FQNs of the state that the step does not have; left as they were."""
    unexpected: tuple[str, ...]
    """FQNs of the step that the state does not have; not read."""
    bytes_read: int
    """Bytes taken from storage, rounding to pages included."""
    direct_bytes: int
    """Of these, what GPUs read from the segments themselves (GPUDirect Storage)."""
    seconds: float


@dataclass(frozen=True)
class DeleteReport:
    """What a delete did."""

    steps: tuple[int, ...]
    segments: int
    """Segment files removed."""
    freed_bytes: int


@dataclass(frozen=True)
class KeyInfo:
    """What a step holds under one FQN."""

    kind: str
    """"tensor" (torch), "ndarray" or "scalar" (numpy), or "value"."""
    type: str
    """Name of the Python type: "torch.Tensor", "numpy.ndarray", "int", "str", ..."""
    dtype: str | None
    """As torch names it, without "torch."; ``None`` for plain values."""
    shape: tuple[int, ...] | None
    """In elements; ``None`` for plain values."""
    nbytes: int
    """Of the contiguous tensor; 0 for plain values."""
    alias_of: str | None
    """FQN of the tensor that holds the bytes, if this one shares them."""
    value: Any
    """The plain value; ``None`` for tensors, and for pickles, which are not opened here."""


@dataclass(frozen=True)
class KeyChange:
    """One key that differs between two steps."""

    kind: str
    """"added", "removed" or "changed"."""
    fqn: str
    is_tensor: bool
    changed_bytes: int
    """Bytes of the chunks that differ; all bytes of a key that came or went."""
    total_bytes: int
    detail: str
    """For people: a change of dtype or shape, the old and new value."""


@dataclass(frozen=True)
class Diff:
    """How two steps differ."""

    changes: tuple[KeyChange, ...]
    unchanged_keys: int

    def _of(self, kind: str) -> tuple[str, ...]:
        return tuple(change.fqn for change in self.changes if change.kind == kind)

    @property
    def added(self) -> tuple[str, ...]:
        """FQNs that only the second step has."""
        return self._of("added")

    @property
    def removed(self) -> tuple[str, ...]:
        """FQNs that only the first step has."""
        return self._of("removed")

    @property
    def changed(self) -> tuple[str, ...]:
        """FQNs that both have, with other contents, dtype or shape."""
        return self._of("changed")
