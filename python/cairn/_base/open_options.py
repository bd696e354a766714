"""Options of `cairn.open`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cairn._base.credentials import Credentials
from cairn.errors import Invalid

if TYPE_CHECKING:
    from cairn._base.progress import Progress


class OpenOptions(NamedTuple):
    """The keyword arguments of `cairn.open`, which documents them."""

    alone: bool = False
    timeout: float = 1800.0
    take_over: bool = False
    grace: float | None = None
    credentials: Credentials = None
    fallback: tuple[str, ...] = ()
    progress: Progress = False

    def check(self, mode: str) -> None:
        if self.take_over and mode == "r":
            raise Invalid("take_over requires mode 'a'; readers never conflict with a writer")
        if not self.timeout > 0:
            raise Invalid(f"timeout={self.timeout}: a positive number of seconds is needed")
