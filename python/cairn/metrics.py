"""The numbers of an event of a store (:meth:`cairn.Store.observe`), for the programs that collect
metrics. docs/monitoring.md has observers for TensorBoard, wandb, MLflow, Prometheus and logs."""

from __future__ import annotations

from cairn.reports import StoreEvent

_OF_THE_STORE = ("delete", "prune")
"""The kinds of calls of all ranks whose reports are the same on each."""


def measures(event: StoreEvent) -> dict[str, float]:
    """The numbers of an event, by name, for a chart or a table.

    All events have ``seconds``, ``stall_seconds``, and ``failed`` (0 or 1); events of stores in a
    directory have ``free_bytes``, and events of stores in a bucket ``retries``. In addition there
    are the numbers of the report, under the names of its fields: ``written_bytes`` and
    ``chunks_reused`` of a save, ``bytes_read`` of a load, ``freed_bytes`` of a prune,
    ``copied_bytes`` and ``lag_seconds`` of a copy to a mirror. A save also has ``reuse``, the part
    of its chunks that was not written, and with recorded statistics ``nan`` and ``inf``.

    In a multi-rank store, only rank 0 has numbers that concern the step or the store as a whole, so
    that a sum over ranks counts nothing twice: ``logical_bytes`` and ``written_bytes`` of a save,
    which count all ranks, and all numbers of the reports of a delete and a prune. On each rank,
    ``rank_logical_bytes`` and ``rank_written_bytes`` count its part of a save. All other numbers
    concern the rank.

    Threads: any.
    """
    found = _numbers_of(event)
    if "chunks_reused" in found:
        found["reuse"] = found["chunks_reused"] / max(1, found["chunks"])
    if event.health is not None:
        found["nan"], found["inf"] = event.health.nan, event.health.inf
    found["seconds"] = event.seconds
    found["stall_seconds"] = event.stall_seconds
    found["failed"] = float(event.error is not None)
    if event.free_bytes is not None:
        found["free_bytes"] = event.free_bytes
    if event.retries is not None:
        found["retries"] = event.retries
    return found


def _numbers_of(event: StoreEvent) -> dict[str, float]:
    """The numbers of the report. In a multi-rank store, see `measures`."""
    found: dict[str, float] = {}
    if event.report is None or (event.kind in _OF_THE_STORE and event.rank > 0):
        return found
    for name in dir(event.report):
        value = None if name.startswith("_") else getattr(event.report, name)
        if name == "steps":
            value = len(value)
        if name != "step" and isinstance(value, (int, float)):
            found[name] = value
    if event.kind != "save":
        return found
    for name in ("logical_bytes", "written_bytes"):
        if event.world_size > 1:
            found[f"rank_{name}"] = found.pop(name)
        if event.rank == 0 and event.info is not None:
            found[name] = getattr(event.info, name)
    return found


def series(event: StoreEvent) -> str:
    """The name under which the numbers of an event are recorded: its kind, and for the second and
    further mirrors of a chain with their number (``mirror2``)."""
    number = event.mirror_number or 1
    return event.kind if number == 1 else f"{event.kind}{number}"
