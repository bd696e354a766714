"""`Mirror`: where a store is mirrored to, and how."""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Sequence
from typing import Union

from cairn._base.addresses import absolute_address, canonical_address
from cairn._base.open_options import GivenCredentials, credentials_function
from cairn.errors import Invalid


@dataclasses.dataclass(frozen=True)
class Mirror:
    """A store that receives copies of the steps of another one, in the background.

    Several mirrors form a chain, from near to far: each one copies from the one before it. See
    docs/mirroring.md.

    Args:
        address: of the mirror; see :func:`cairn.open`. It is created if it does not exist.
        every: copies only the steps that this number divides. In a chain, it must be a multiple of
            the ``every`` of the mirror before it.
        keep_last, keep_every: after each copy, deletes from the mirror all older steps except the
            last ``keep_last`` and the multiples of ``keep_every``. If both are 0, the mirror keeps
            all steps.
        max_pending: number of steps that wait for their copy, at least 1. If there are more, the
            oldest ones are skipped. The steps that wait are not pruned from their store.
        max_rate: limit in bytes of payload per second; by default there is none.
        threads: segments that are copied at once.
        timeout: seconds without progress after which a copy that fails is not repeated any more.
        take_over: becomes the writer of the mirror even if another process has it open for
            writing.
        credentials: for a bucket; see :func:`cairn.open`. By default, the credentials with which
            the store was opened.

    Raises:
        Invalid: a number is out of range.
    """

    address: str | os.PathLike[str]
    every: int = 1
    keep_last: int = 0
    keep_every: int = 0
    max_pending: int = 4
    max_rate: int | None = None
    threads: int = 4
    timeout: float = 600.0
    take_over: bool = False
    credentials: GivenCredentials = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", absolute_address(self.address))
        object.__setattr__(self, "credentials", credentials_function(self.credentials))
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if name == "max_rate" and value is None:
                continue
            if not least <= operator.index(value) <= most:
                raise Invalid(f"mirror {self}: {name}={value} must be {least} to {most}")
        if not self.timeout > 0:
            raise Invalid(f"mirror {self}: timeout={self.timeout} must be positive")

    def __str__(self) -> str:
        return os.fspath(self.address)


_RANGES = {
    "every": (1, 2**64 - 1),
    "keep_last": (0, 2**64 - 1),
    "keep_every": (0, 2**64 - 1),
    "max_pending": (1, 2**32 - 1),
    "max_rate": (1, 2**64 - 1),
    "threads": (1, 1024),
}

Mirrors = Union[str, "os.PathLike[str]", Mirror, Sequence[Union[str, "os.PathLike[str]", Mirror]]]
"""The types of ``mirror=``: an address, a Mirror, or a chain of them."""


def mirror_chain(mirrors: Mirrors | None, source: str, every: int = 1) -> tuple[Mirror, ...]:
    """The mirrors of the store at ``source``, from near to far; empty for None.

    Args:
        every: applies to a mirror that is given as an address.

    Raises Invalid if two of the stores are the same, or if ``every`` of a mirror is not a multiple
    of the ``every`` of the mirror before it.
    """
    if mirrors is None:
        return ()
    given = [mirrors] if isinstance(mirrors, (str, os.PathLike, Mirror)) else list(mirrors)
    chain = tuple(
        one if isinstance(one, Mirror) else Mirror(os.fspath(one), every=every) for one in given
    )
    seen = {canonical_address(source)}
    for mirror in chain:
        if canonical_address(str(mirror)) in seen:
            raise Invalid(f"mirror {mirror}: it is the store itself, or named twice")
        seen.add(canonical_address(str(mirror)))
    for near, far in zip(chain, chain[1:]):
        if far.every % near.every != 0:
            raise Invalid(
                f"mirror {far}: every={far.every} is not a multiple of every={near.every} of "
                f"{near}, from which it copies"
            )
    return chain


def check_same(known: tuple[Mirror, ...], mirrors: tuple[Mirror, ...]) -> None:
    """Raises Invalid if these are the same stores with other options. ``every`` may differ."""
    for old, new in zip(known, mirrors):
        if dataclasses.replace(new, every=old.every, address=old.address) != old:
            raise Invalid(f"mirror {new}: the store already has this mirror with other options")
