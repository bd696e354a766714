"""Step numbers, and the texts that choose steps."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from cairn.errors import Invalid


def step_number(step: int) -> int:
    """`step` as an int. Raises Invalid if it is out of range, TypeError if it is not an integer; a
    bool is none, because it is probably the argument of another parameter."""
    if isinstance(step, bool):
        raise TypeError(f"step={step}: a step is an integer, not a bool")
    number = operator.index(step)
    if not 0 <= number < 2**64:
        raise Invalid(f"step {number}: steps are 0 to 2**64 - 1")
    return number


def best_texts(keep_best: str | Iterable[str]) -> list[str]:
    """The texts ``METRIC:N`` of an argument that is one or several of them."""
    return [keep_best] if isinstance(keep_best, str) else list(keep_best)
