"""How long an asynchronous save keeps the caller from changing its tensors.

`peer.save_async(state, keys)` prepares and returns a function. Calling that returns as soon as the
caller may go on and change its tensors, with a function that waits until the save is durable. The
first save of a process makes staging memory, so the figures are of those after it.
"""

from __future__ import annotations

from dataclasses import asdict

from compare_lib.child import Record
from compare_lib.meter import Meter
from compare_lib.peers.base import Peer
from compare_lib.states import State

LATER_SAVES = 3
"""In one process, after the first."""


def measure_stalls(peer: Peer, state: State, keys: list[str]) -> list[Record]:
    records = []
    whole = Meter()
    stall = peer.save_async(state, keys)
    for number in range(1 + LATER_SAVES):
        if number > 0:
            state.change(keys)  # for limits too: what was changed lies in pages of the child's own
        meter = Meter(peak_from=whole)
        finish = stall()
        record = asdict(meter.stop())
        finish()
        # The save works on behind the caller's back: its memory counts, whenever it is needed.
        record["peak_bytes"] = meter.stop().peak_bytes
        records.append(record | {"first": number == 0})
    return records
