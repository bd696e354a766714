"""Options of `cairn.open`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping


@dataclasses.dataclass(frozen=True)
class OpenOptions:
    """The keyword arguments of `cairn.open`, which documents them."""

    alone: bool = False
    timeout: float = 1800.0
    take_over: bool = False
    grace: float | None = None
    credentials: Callable[[], Mapping[str, object]] | None = None
    fallback: tuple[str, ...] = ()
