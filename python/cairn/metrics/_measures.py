"""`measures`: the numbers of an event, and `LastStep`: the step under which they are recorded."""

from __future__ import annotations

import dataclasses

from cairn.reports import StoreEvent


def measures(event: StoreEvent) -> dict[str, float]:
    """The numbers of an event, by name, for a chart or a table.

    All events have ``seconds``, ``stall_seconds``, and ``failed`` (0 or 1); those of stores in a
    directory have ``free_bytes``. In addition there are the numbers of the report, under the names
    of its fields: ``written_bytes`` and ``chunks_reused`` of a save, ``bytes_read`` of a load,
    ``freed_bytes`` of a prune. A save also has ``reuse``, the part of its chunks that was not
    written; ``logical_bytes`` and ``written_bytes`` are those of all ranks where the event has
    ``info``; and with recorded statistics there are ``nan`` and ``inf``.

    Threads: any.
    """
    found: dict[str, float] = {}
    if event.report is not None:
        for field in dataclasses.fields(event.report):
            value = getattr(event.report, field.name)
            if field.name == "steps":
                value = len(value)
            if field.name != "step" and isinstance(value, (int, float)):
                found[field.name] = value
    if "chunks_reused" in found:
        found["reuse"] = found["chunks_reused"] / max(1, found["chunks"])
    if event.info is not None:
        found["logical_bytes"] = event.info.logical_bytes
        found["written_bytes"] = event.info.written_bytes
    if event.health is not None:
        found["nan"], found["inf"] = event.health.nan, event.health.inf
    found["seconds"] = event.seconds
    found["stall_seconds"] = event.stall_seconds
    found["failed"] = float(event.error is not None)
    if event.free_bytes is not None:
        found["free_bytes"] = event.free_bytes
    return found


class LastStep:
    """The step under which the numbers of an event are recorded: its own, or that of the event
    before it, for example for a prune. Threads: any."""

    def __init__(self) -> None:
        self._step = 0

    def of(self, event: StoreEvent) -> int:
        if event.step is not None:
            self._step = event.step
        return self._step
