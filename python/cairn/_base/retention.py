"""Which steps are kept when older ones are deleted."""

from __future__ import annotations

from collections.abc import Sequence


def unwanted(steps: Sequence[int], newest: int, keep_last: int, keep_every: int) -> list[int]:
    """Steps to delete once `newest` is durable: those that neither argument keeps.

    `newest` and the steps above it are never deleted.
    """
    older = sorted(step for step in steps if step < newest)
    recent = older[max(len(older) - max(keep_last - 1, 0), 0) :]
    return [
        step for step in older if step not in recent and not (keep_every and step % keep_every == 0)
    ]
