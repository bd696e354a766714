"""Addresses of steps, as the programs accept them: STORE, STORE@STEP and STORE@TAG."""

from __future__ import annotations

import os
from typing import NamedTuple

from cairn._base.addresses import is_directory
from cairn.errors import Invalid


class StepAddress(NamedTuple):
    """A store, and a step of it by number or tag; None: the latest."""

    store: str
    step: int | str | None

    def __str__(self) -> str:
        return self.store if self.step is None else f"{self.store}@{self.step}"


def parse_address(text: str | os.PathLike[str]) -> StepAddress:
    """The store and the step of an address. Raises Invalid if it does not name a store."""
    text = os.fspath(text)
    store, at, name = text.rpartition("@")
    if not at or "/" in name or not name or _exists(text):
        return StepAddress(text, None)
    if not store:
        raise Invalid(f"'{text}' does not name a store; write STORE or STORE@STEP")
    return StepAddress(store, int(name) if name.isascii() and name.isdigit() else name)


def _exists(address: str) -> bool:
    return is_directory(address) and os.path.exists(address.removeprefix("file:"))
