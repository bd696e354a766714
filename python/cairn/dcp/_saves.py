"""A multi-rank save in the steps of DCP: a ticket from the coordinator, one part per rank.

1. The coordinator, in prepare_global_plan, opens the store and adds a ticket to the plan of each
   rank.
2. Each rank, in write_data, writes its part. All ranks except the coordinator also prepare it.
3. The coordinator, in finish, merges the parts and commits the step.

DCP does not notify a storage when a save fails on another rank: it only does not call finish. The
coordinator's part, which holds the store open for writing, is therefore aborted when its writer is
destroyed or starts another save, when another writer starts a save into the same store on the same
thread, or after its thread has ended (cairn._opened.coordinator_parts).
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import warnings
from dataclasses import asdict, dataclass
from typing import Any

from cairn import _cairn
from cairn._base.addresses import canonical_address, is_directory
from cairn._opened import coordinator_parts
from cairn._opened.continued import continue_from_loaded, noted_base
from cairn.dcp._location import Location
from cairn.errors import Conflict, Error, Invalid, NotFound, Unavailable


def new_id() -> str:
    """A new identifier of a save or load, for DCP's StorageMeta."""
    return secrets.token_hex(16)


@dataclass(frozen=True)
class Ticket:
    """The data that a rank needs to join a save. It is sent in ``SavePlan.storage_data``."""

    address: str
    attempt: tuple[int, int, str, str]
    """(step, world size, session, attempt), from _cairn.StepPart.open_session."""
    rank: int
    job: str
    """Identifier of the coordinator's process."""
    base: dict[str, Any]
    """Arguments that choose the step with which the save is compared; none: the latest."""

    @property
    def prefix(self) -> str:
        """The member of torch's own storage data: planners that cache plans in their class give its
        writer plans that this writer has completed."""
        return f"__{self.rank}_"


MARKER = (
    b"cbuiltins\nThis is a Cairn store, which torch's own readers cannot load: pass "
    b"storage_reader=cairn.dcp.CairnReader(path), or call cairn.dcp.register() before\n."
)
"""The object `.metadata`, by which programs recognize a checkpoint of torch. A reader of torch
unpickles it, and fails with this text, because there is no such builtin."""

_JOB = new_id()
# Attempts that this process has joined.
_used: set[str] = set()


class Part:
    """One rank's part of a save. Threads: only one thread at a time."""

    def __init__(self, address: str, session: str = "") -> None:
        self._pid = os.getpid()
        self._thread = threading.current_thread()
        self._address = address
        self.canonical_address = canonical_address(address)
        self.store = _cairn.Store(address, True, None, session=session)
        self._native: _cairn.StepPart | None = _cairn.StepPart(self.store)
        self.base: dict[str, Any] = {}
        """See `Ticket`."""
        self.has_other_ranks = False
        """Whether other ranks may join, which they can only while this part is open."""

    @property
    def native(self) -> _cairn.StepPart:
        if self._native is None:
            raise Invalid(
                f"the save into {self._address} was aborted, because another one has started; each "
                "save needs its own writer"
            )
        return self._native

    def close(self) -> None:
        """Aborts what was not committed. May be called again. Raises Conflict, and aborts nothing,
        while another thread is saving."""
        if self._pid != os.getpid():
            return  # in a forked child: threads and files belong to the parent
        if self._native is not None:
            self._native.close()
            self.store.close()
        self._native = None
        coordinator_parts.unregister(self.canonical_address, self)

    def close_for_next_save(self) -> None:
        """Aborts what was not committed, for the next save of the same writer, possibly on another
        thread. Raises Conflict if the thread that started this save is alive and may still be
        saving. That can only be a thread of dcp.async_save, which ends with its save."""
        if self._thread not in (threading.current_thread(), threading.main_thread()):
            self._thread.join(coordinator_parts.THREAD_END_SECONDS)
            if self._thread.is_alive():
                raise Conflict(
                    f"a save into {self._address} with this writer still runs: wait for its "
                    "future, or use a separate writer for each save"
                )
        self.close()

    def __del__(self) -> None:
        # If __init__ has raised, attributes are missing.
        if getattr(self, "_native", None) is not None:
            self.close()


def open_for_save(location: Location, overwrite: bool) -> Part:
    """The coordinator's part. Creates the store if it does not exist. Raises Conflict if another
    process has the store open for writing, or if the step exists and must not be replaced; Invalid
    if no step was named and the store has other steps."""
    coordinator_parts.close_abandoned(location.address)
    if is_directory(location.address):
        parent = os.path.dirname(canonical_address(location.address))
        os.makedirs(parent, exist_ok=True)
    part = Part(location.address)
    coordinator_parts.register(part.canonical_address, part)  # a later save may close it
    try:
        _check_steps(location, part.store.steps(), overwrite)
        part.base = noted_base(part.store, location.step or 0)
        continue_from_loaded(part.store, location.step or 0)
    except BaseException:
        part.close()
        raise
    return part


def _check_steps(location: Location, steps: list[int], overwrite: bool) -> None:
    others = [step for step in steps if step != 0]
    if location.step is None and others:
        raise Invalid(
            f"the store {location.address} has steps, such as {others[-1]}: name the step to save, "
            "with step= or ADDRESS@STEP"
        )
    step = location.step or 0
    if step in steps and not overwrite:
        raise Conflict(
            f"Checkpoint already exists and overwrite=False: step {step} in {location.address}",
            step=step,
        )


def leave_marker(part: Part) -> None:
    """Puts `.metadata` into the store of a step that was committed, unless it exists. Warns if
    that is not possible, because the step exists."""
    try:
        part.native.put_if_absent(".metadata", MARKER)
    except Error as error:
        warnings.warn(f"the step exists, but its store lacks .metadata: {error}", stacklevel=2)


def tickets(part: Part, location: Location, world_size: int) -> list[Ticket]:
    """One ticket per rank."""
    attempt = part.native.open_session(location.step or 0, world_size)
    part.has_other_ranks = world_size > 1
    base = part.base
    return [Ticket(location.address, attempt, rank, _JOB, base) for rank in range(world_size)]


# Planners that cache plans (enable_plan_caching) give a rank the plan of an earlier save, with an
# old ticket. The current ticket is in an object next to the pending parts of the store.

_TICKET = "pending/dcp-ticket.json"


def publish_ticket(ticket: Ticket) -> None:
    """Writes the ticket for ranks that get an older one from their planner."""
    _cairn.write_object(ticket.address, _TICKET, json.dumps(asdict(ticket)).encode())


def current_ticket(ticket: Any, address: str, rank: int | None, *, plan_is_cached: bool) -> Ticket:
    """The ticket of this save into the store at `address`: the one in the plan, or a newer one, if
    the planner gives a plan that an earlier save has completed, with this storage or another one.
    `plan_is_cached`: it is known to do so, and the earlier save may have failed. Raises Invalid if
    there is no ticket, or only one of another job."""
    in_plan = ticket if isinstance(ticket, Ticket) else None
    current = in_plan
    if current is None or plan_is_cached or current.attempt[3] in _used:
        current = _published_ticket(address, in_plan.rank if in_plan else rank or 0)
        if current.attempt[3] in _used or (in_plan is not None and current.job != in_plan.job):
            raise Invalid("the planner gave the plan of an earlier save, and there is no newer one")
    _used.add(current.attempt[3])
    return current


def _published_ticket(address: str, rank: int) -> Ticket:
    try:
        found: dict[str, Any] = json.loads(_cairn.read_object(address, _TICKET))
    except (NotFound, Unavailable, ValueError) as error:
        raise Invalid(
            "this plan has not been through CairnWriter.prepare_global_plan: a planner must keep "
            f"storage_data, or give the plan of an earlier save ({error})"
        ) from error
    return Ticket(address, tuple(found["attempt"]), rank, found["job"], found["base"])
