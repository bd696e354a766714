"""One save of many ranks, as DCP drives it: a ticket from the coordinator, a part of each rank.

    coordinator, in prepare_global_plan   opens the store and gives every rank's plan a ticket
    each rank, in write_data              writes its part; all but the coordinator hand theirs in
    coordinator, in finish                joins the parts and commits

DCP does not tell a storage that a save has failed on another rank: finish is just not called. So the
coordinator's part, which holds the store open for writing, is given up when its writer goes, begins
another save, or when the same thread begins a save of the same store with another writer.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import weakref
from dataclasses import asdict, dataclass
from typing import Any

from cairn import _cairn
from cairn.dcp.location import Location
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
_lock = threading.Lock()
# By address: who holds a store open in this process between write_data and finish, on which thread.
_waiting: dict[str, tuple[weakref.ref, int]] = {}
# Attempts that this process has taken part in.
_used: set[str] = set()


class Part:
    """One rank's part of one save. Threads: one at a time."""

    def __init__(self, address: str, session: str = "") -> None:
        self._address = address
        self._native: _cairn.StepPart | None = _cairn.StepPart(address, session)

    @property
    def native(self) -> _cairn.StepPart:
        if self._native is None:
            raise Invalid(
                f"the save into {self._address} was given up, as another one began; a save needs "
                "a writer of its own"
            )
        return self._native

    def wait_for_finish(self) -> None:
        """To be called when all that is left is the coordinator's word."""
        with _lock:
            _waiting[self._address] = (weakref.ref(self), threading.get_ident())

    def close(self) -> None:
        """Gives up what was not committed. May be called again."""
        with _lock:
            if self._address in _waiting and _waiting[self._address][0]() in (self, None):
                del _waiting[self._address]
        native, self._native = self._native, None
        if native is not None:
            native.close()

    def __del__(self) -> None:
        # Attributes are missing if __init__ has raised.
        if getattr(self, "_native", None) is not None:
            self.close()


def open_for_save(location: Location, overwrite: bool) -> Part:
    """The coordinator's part; makes the store if it is absent. Raises Conflict as cairn.open, and
    for a step that exists and must not be replaced; Invalid where no step was named, yet the store
    has others."""
    with _lock:
        part_of, thread = _waiting.get(location.address, (None, 0))
    given_up = part_of() if part_of is not None and thread == threading.get_ident() else None
    if given_up is not None:
        given_up.close()
    os.makedirs(os.path.dirname(os.path.abspath(location.address)), exist_ok=True)
    part = Part(location.address)
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
    return [Ticket(location.address, attempt, rank, _JOB) for rank in range(world_size)]


# Planners that cache plans (enable_plan_caching) give a rank its plan of an earlier save, with the
# ticket of then. The ticket of now is in a file beside the store's pending parts.


def _ticket_path(address: str) -> str:
    return os.path.join(address.removeprefix("file:"), "pending", "dcp-ticket.json")


def leave_ticket(ticket: Ticket) -> None:
    """For ranks that get an older one from their planner. The coordinator calls it."""
    path = _ticket_path(ticket.address)
    temporary = f"{path}.{_JOB}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(asdict(ticket), file)
    os.replace(temporary, path)


def current_ticket(ticket: Ticket | None) -> Ticket:
    """The ticket of this save. Raises Invalid for none, or one of another job's save."""
    if not isinstance(ticket, Ticket):
        raise Invalid(
            "this plan has not been through CairnWriter.prepare_global_plan: a planner must keep "
            "storage_data"
        )
    if ticket.attempt[3] in _used:
        ticket = _found_ticket(ticket)
    _used.add(ticket.attempt[3])
    return ticket


def _found_ticket(old: Ticket) -> Ticket:
    try:
        with open(_ticket_path(old.address), encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (OSError, ValueError) as error:
        raise Invalid(f"the planner gave the plan of an earlier save ({error})") from error
    if found["job"] != old.job or found["attempt"][3] in _used:
        raise Invalid("the planner gave the plan of an earlier save, and there is no newer one")
    return Ticket(old.address, tuple(found["attempt"]), old.rank, old.job)
