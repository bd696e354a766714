"""The report of a save."""

from __future__ import annotations

from dataclasses import dataclass


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
    chunks: int
    chunks_reused: int
    """Chunks recorded as references to bytes that the store already contained."""
    seconds: float
