"""Measures how long an asynchronous save prevents the caller from changing its tensors.

`peer.save_async(state, keys)` prepares and returns a function. Calling this function returns as
soon as the caller may change its tensors; its result is a function that waits until the save is
durable. The first save of a process allocates staging memory, so the figures are of later ones.
"""

from __future__ import annotations

from dataclasses import asdict

from compare_lib.child import Record
from compare_lib.meter import Meter
from compare_lib.peers.base import Peer
from compare_lib.states import State

LATER_SAVES = 3
"""Number of saves in one process, after the first one."""


def measure_stalls(peer: Peer, state: State, keys: list[str]) -> list[Record]:
    records = []
    whole = Meter()
    stall = peer.save_async(state, keys)
    for number in range(1 + LATER_SAVES):
        if number > 0:
            state.change(keys)  # for limits too: gives the child its own pages
        meter = Meter(peak_from=whole)
        finish = stall()
        record = asdict(meter.stop())
        finish()
        # The save continues in the background: its memory counts, whenever it is needed.
        record["peak_bytes"] = meter.stop().peak_bytes
        records.append(record | {"first": number == 0})
    return records
