"""Options of `cairn.open`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cairn._base.progress import Progress


class OpenOptions(NamedTuple):
    """The keyword arguments of `cairn.open`, which documents them."""

    alone: bool = False
    timeout: float = 1800.0
    take_over: bool = False
    grace: float | None = None
    credentials: Callable[[], Mapping[str, object]] | None = None
    fallback: tuple[str, ...] = ()
    progress: Progress = False
