"""What a module of this package states about its library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from integrations_lib.run import Run


@dataclass(frozen=True)
class Library:
    """How a library trains and resumes with each contender."""

    title: str
    packages: tuple[str, ...]
    """Whose versions are stated."""
    rivals: dict[str, str]
    """The library's own ways to save, each with the way of Cairn that it is compared with."""
    train: Callable[[Run], None]
    """Trains and saves `SAVES` steps."""
    resume: Callable[[Run], None]
    """Restores the last step, in new processes."""
    others: tuple[str, ...] = ()
    """Other ways of Cairn, which are measured, too."""
    ranks: int = 1
    text: str = ""
    """What the page states about the comparison."""

    @property
    def contenders(self) -> list[str]:
        return [*self.rivals, *dict.fromkeys([*self.rivals.values(), *self.others])]
