"""The reports of loads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
