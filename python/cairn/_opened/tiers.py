"""`Tiers`: several stores with copies of the same steps, from near to far.

A load uses the nearest store that has the step. Copies of a step have the attempt of their source.
If two stores have different steps with the same number, because a job resumed from an earlier step
and saved it again, the one that was saved last is used.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from cairn import _cairn
from cairn._base.addresses import step_number
from cairn._base.open_options import Credentials, OpenOptions
from cairn._ranks.ranks import Ranks
from cairn.errors import Error, Invalid, NotFound


class Tier(NamedTuple):
    """A store that is opened for reading when it is needed."""

    address: str
    credentials: Credentials


class Location(NamedTuple):
    """Where a step is: position of the tier, 0 for the nearest one, and its number."""

    tier: int
    step: int


class Tiers:
    """The stores in which a step may be. The nearest one is open; the others are opened for reading
    when they are needed, and need not exist.

    Threads: all methods may be called from any thread.
    """

    def __init__(self, nearest: _cairn.Store, others: tuple[Tier, ...]) -> None:
        self._nearest = nearest
        self.others = others
        self._lock = threading.Lock()
        self._open: dict[int, _cairn.Store] = {}  # guarded by _lock

    def native(self, tier: int) -> _cairn.Store | None:
        """The open store; None if it does not exist. Raises the errors of an open."""
        if tier == 0:
            return self._nearest
        with self._lock:
            if tier not in self._open:
                try:
                    self._open[tier] = self._open_tier(tier, None)
                except NotFound:
                    return None
            return self._open[tier]

    def open_together(self, tier: int, communicator: _cairn.Communicator | None) -> _cairn.Store:
        """Opens a tier on all ranks. Collective."""
        if tier == 0 or communicator is None:
            return self.native(tier) or self._nearest
        return self._open_tier(tier, communicator)

    def place_of(self, step: int | None) -> tuple[_cairn.Store, int | None]:
        """The store that has the step, or the latest step, and the argument for its `contents`,
        which raises NotFound if there is no such step."""
        found = self.find(step) if self.others else None
        if found is None:
            return self._nearest, step
        return self.native(found.tier) or self._nearest, found.step

    def steps(self) -> list[int]:
        """The numbers of the steps that are in any of the stores, ascending.

        Raises the error of a store that cannot be read.
        """
        found: set[int] = set()
        for tier in range(len(self.others) + 1):
            found.update(self._steps_of(tier))
        return sorted(found)

    def latest(self) -> int | None:
        """The latest step of all stores."""
        return next(iter(self.line()), None) if self.others else self._nearest.latest()

    def line(self, end: int | None = None, base: int | None = None) -> list[int]:
        """`end`, by default the latest step, and those from which it has continued, without `base`.
        Raises the error of a store that cannot be read."""
        others = (self.native(tier) for tier in range(1, len(self.others) + 1))
        opened = [native for native in others if native is not None]
        return self._nearest.line(opened, end=end, base=base)

    def find(self, step: int | None) -> Location | None:
        """Where a step, or the latest one, is; None if no store has it.

        Raises the error of a store that cannot be read, unless a nearer one has the step that is
        asked for; then it warns, because the other store may have a newer one with this number. If
        the latest step is asked for, it is not known without that store.
        """
        problem: Error | None = None
        holders: dict[int, list[int]] = {}  # by step
        for tier in range(len(self.others) + 1):
            try:
                for number in self._steps_of(tier):
                    holders.setdefault(number, []).append(tier)
            except Error as error:
                if step is None:
                    raise
                problem = problem or error
        number = next(iter(self.line()), None) if step is None else step_number(step)
        if number is None or number not in holders:
            if problem is not None:
                raise problem
            return None
        if problem is not None:
            warnings.warn(
                f"a store that may have step {number} was not read: {problem}",
                RuntimeWarning,
                stacklevel=5,
            )
        return Location(self._newest(number, holders[number])[0], number)

    def copies(self, step: int) -> list[int]:
        """The tiers with the same step as the one that `find` returns, which is the first."""
        tiers = range(len(self.others) + 1)
        return self._newest(step, [tier for tier in tiers if step in self._steps_of(tier)])

    def find_both(self, a: int, b: int) -> _cairn.Store | None:
        """The nearest store that has two steps; None if there is none."""
        for tier in range(len(self.others) + 1):
            if {a, b} <= set(self._steps_of(tier)):
                return self.native(tier)
        return None

    def close(self) -> None:
        with self._lock:
            for store in self._open.values():
                store.close()
            self._open.clear()

    def _steps_of(self, tier: int) -> list[int]:
        native = self.native(tier)
        return [] if native is None else native.steps()

    def _newest(self, step: int, tiers: list[int]) -> list[int]:
        """Of tiers that have a step, those with the one that was saved last, from near to far."""
        if len(tiers) == 1:
            return tiers
        times: dict[int, int] = {}
        for tier in tiers:
            native = self.native(tier)
            with suppress(NotFound):  # it was deleted in the meantime
                times[tier] = 0 if native is None else native.step_info(step).created_unix_ns
        newest = max(times.values(), default=0)
        return [tier for tier, time in times.items() if time == newest] or tiers[:1]

    def _open_tier(self, tier: int, communicator: _cairn.Communicator | None) -> _cairn.Store:
        address, credentials = self.others[tier - 1]
        return _cairn.Store(address, False, communicator, credentials=credentials)


def open_nearest(
    addresses: tuple[str, ...],
    writable: bool,
    communicator: _cairn.Communicator | None,
    options: OpenOptions,
) -> tuple[_cairn.Store, str, Tiers]:
    """Opens the first store; for reading, the first one that exists. Collective.

    Returns it, its address, and the tiers of it and the stores after it.
    """
    for i, address in enumerate(addresses):
        others = tuple(Tier(other, options.credentials) for other in addresses[i + 1 :])
        try:
            native = _cairn.Store(
                address,
                writable,
                communicator,
                take_over=options.take_over,
                grace=options.grace,
                credentials=options.credentials,
            )
        except NotFound:
            if others:
                continue
            raise
        return native, address, Tiers(native, others)
    raise Invalid("a store needs an address")


def agree_on_step(ranks: Ranks, step: int | None, find: Callable[[], Any]) -> Any:
    """What `find()`, which only rank 0 calls, returns for the step to load. Collective.

    Raises Invalid if the ranks name different steps.
    """

    def own() -> tuple[int | None, Any]:
        return step, find() if ranks.rank == 0 else None

    replies = ranks.exchange_values(own)
    if any(given != replies[0][0] for given, _ in replies):
        given_by_rank = [given for given, _ in replies]
        raise Invalid(
            f"ranks load different steps, by rank: {given_by_rank}: give all ranks the same step"
        )
    return replies[0][1]
