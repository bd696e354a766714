"""Measures saves that one process repeats: the stall of a save in the background, and small saves.

Peers return a function that saves once. The first save of a process allocates memory and creates
files that later ones reuse, so the figures are of the later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from compare_lib.child import Record
from compare_lib.meter import Meter
from compare_lib.peers.base import Finish
from compare_lib.states import State

LATER_STALLS = 3
"""Number of saves in the background in one process, after the first one."""
SMALL_SAVES = 30
"""Number of small saves in one process, after the first one."""


def measure_stalls(
    begin: Callable[[State, list[str]], Callable[[], Finish]], state: State, keys: list[str]
) -> list[Record]:
    """`begin(state, keys)` prepares and returns a function.

    Calling this function returns as soon as the caller may change its tensors; its result is a
    function that waits until the save is durable.
    """
    records = []
    whole = Meter()
    stall = begin(state, keys)
    for number in range(1 + LATER_STALLS):
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


def measure_small_saves(
    begin: Callable[[State], Callable[[int], None]], state: State
) -> list[Record]:
    """`begin(state)` returns a function that saves the state durably, with the number of the save.

    The state changes completely before each save.
    """
    records = []
    save = begin(state)
    for number in range(1 + SMALL_SAVES):
        state.change(list(state.tensors))
        meter = Meter()
        save(number)
        records.append(asdict(meter.stop()) | {"first": number == 0})
    return records
