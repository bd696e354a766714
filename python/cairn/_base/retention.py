"""Chooses the steps that are kept when older ones are deleted."""

from __future__ import annotations

from collections.abc import Iterable


def best_texts(keep_best: str | Iterable[str]) -> list[str]:
    """The texts ``METRIC:N`` of an argument that is one or several of them."""
    return [keep_best] if isinstance(keep_best, str) else list(keep_best)
