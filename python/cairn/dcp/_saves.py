"""One save of many ranks, as DCP drives it: a ticket from the coordinator, a part of each rank.

    coordinator, in prepare_global_plan   opens the store and gives every rank's plan a ticket
    each rank, in write_data              writes its part; all but the coordinator hand theirs in
    coordinator, in finish                joins the parts and commits

DCP does not tell a storage that a save has failed on another rank: finish is just not called. So
the coordinator's part, which holds the store open for writing, is given up when its writer goes or
begins another save, or when a save of the same store begins with another writer on the same thread,
or after its thread has ended.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from dataclasses import asdict, dataclass
from typing import Any

from cairn import _cairn
from cairn._base.addresses import folder_of
from cairn._save import coordinator_parts
from cairn.dcp._location import Location
from cairn.errors import Conflict, Invalid


def new_id() -> str:
    """Names one save or load, as DCP's StorageMeta wants it."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Ticket:
    """What a rank needs to take part; travels in ``SavePlan.storage_data``."""

    address: str
    attempt: tuple[int, int, str, str]
    """(step, world size, session, attempt), as _cairn.StepPart.invite gives it."""
    rank: int
    job: str
    """Of the coordinator's process."""


_JOB = new_id()
# Attempts that this process has taken part in.
_used: set[str] = set()


class Part:
    """One rank's part of one save. Threads: one at a time."""

    def __init__(self, address: str, session: str = "") -> None:
        self._pid = os.getpid()
        self._thread = threading.current_thread()
        self._address = address
        self._folder = folder_of(address)
        self._native: _cairn.StepPart | None = _cairn.StepPart(address, session)
        self.has_other_ranks = False
        """Whether other ranks may join: only as long as this part is open."""

    @property
    def native(self) -> _cairn.StepPart:
        if self._native is None:
            raise Invalid(
                f"the save into {self._address} was given up, as another one began; a save needs "
                "a writer of its own"
            )
        return self._native

    def coordinate(self) -> None:
        """Marks this as the coordinator's part, which a later save on this thread may close."""
        coordinator_parts.register(self._folder, self)

    def close(self) -> None:
        """Gives up what was not committed. May be called again.

        Raises Conflict, with nothing given up, while another thread saves.
        """
        if self._pid != os.getpid():
            return  # a forked child's: locks and files are the parent's
        if self._native is not None:
            self._native.close()
        self._native = None
        coordinator_parts.unregister(self._folder, self)

    def close_for_next_save(self) -> None:
        """The same, for the next save of the same writer, which may be on another thread.

        Raises Conflict if the thread that began this one lives and may still save: one of
        dcp.async_save, which ends with its save. The main thread would be in this save itself.
        """
        if self._thread not in (threading.current_thread(), threading.main_thread()):
            self._thread.join(coordinator_parts.THREAD_END_SECONDS)
            if self._thread.is_alive():
                raise Conflict(
                    f"a save into {self._address} with this writer still runs: wait for its "
                    "future, or give each save a writer of its own"
                )
        self.close()

    def __del__(self) -> None:
        # Attributes are missing if __init__ has raised.
        if getattr(self, "_native", None) is not None:
            self.close()


def open_for_save(location: Location, overwrite: bool) -> Part:
    """The coordinator's part; makes the store if it is absent. Raises Conflict as cairn.open, and
    for a step that exists and must not be replaced; Invalid where no step was named, yet the store
    has others."""
    folder = folder_of(location.address)
    coordinator_parts.close_abandoned(location.address)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    part = Part(location.address)
    part.coordinate()
    try:
        _check_steps(location, part.native.steps(), overwrite)
    except BaseException:
        part.close()
        raise
    return part


def _check_steps(location: Location, steps: list[int], overwrite: bool) -> None:
    others = [step for step in steps if step != 0]
    if location.step is None and others:
        raise Invalid(
            f"the store {location.address} has steps, such as {others[-1]}: say which one to save, "
            "with step= or ADDRESS@STEP"
        )
    step = location.step or 0
    if step in steps and not overwrite:
        raise Conflict(
            f"step {step} exists in {location.address}, and overwrite is False", step=step
        )


def tickets(part: Part, location: Location, world_size: int) -> list[Ticket]:
    """One for each rank."""
    attempt = part.native.invite(location.step or 0, world_size)
    part.has_other_ranks = world_size > 1
    return [Ticket(location.address, attempt, rank, _JOB) for rank in range(world_size)]


# Planners that cache plans (enable_plan_caching) give a rank its plan of an earlier save, with the
# ticket of then. The ticket of now is in a file beside the store's pending parts.


def _ticket_path(address: str) -> str:
    return os.path.join(folder_of(address), "pending", "dcp-ticket.json")


def publish_ticket(ticket: Ticket) -> None:
    """For ranks that get an older one from their planner. The coordinator calls it."""
    path = _ticket_path(ticket.address)
    temporary = f"{path}.{_JOB}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(asdict(ticket), file)
    os.replace(temporary, path)


def current_ticket(ticket: Ticket | None, address: str, *, plan_is_cached: bool) -> Ticket:
    """The ticket of this save into the store at `address`: the one in the plan, or a newer one.
    `plan_is_cached`: the planner is known to give the plan of an earlier save. Raises Invalid for
    none, or one of another job's save."""
    if not isinstance(ticket, Ticket):
        raise Invalid(
            "this plan has not been through CairnWriter.prepare_global_plan: a planner must keep "
            "storage_data"
        )
    if plan_is_cached or ticket.attempt[3] in _used:
        ticket = _found_ticket(ticket, address)
    _used.add(ticket.attempt[3])
    return ticket


def _found_ticket(old: Ticket, address: str) -> Ticket:
    try:
        with open(_ticket_path(address), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise Invalid(f"the planner gave the plan of an earlier save ({error})") from error
    if found["job"] != old.job or found["attempt"][3] in _used:
        raise Invalid("the planner gave the plan of an earlier save, and there is no newer one")
    return Ticket(address, tuple(found["attempt"]), old.rank, old.job)
