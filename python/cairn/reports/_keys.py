"""Records of a store about keys, and differences of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
    """The record of a save about the values of a tensor (``save(..., statistics=True)``)."""

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
    """Mean of the finite values; NaN if there are none."""

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
