"""Runs the measurements in turns: per workload and run, each peer once, in a rotating order."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compare_lib import works
from compare_lib.child import LATE, Record, run_in_child
from compare_lib.peers import PEERS
from compare_lib.peers.base import Peer
from compare_lib.repeated import LATER_STALLS
from compare_lib.results import Results
from compare_lib.states import State
from compare_lib.works import Work

SAVE = next(work for work in works.WORKS if work.name == "save")
RANKS_SAVE = next(work for work in works.WORKS if work.name == "ranks_save")
SAVING = (SAVE, RANKS_SAVE)
BESIDE = {"load_warm": "load_cold"}
"""Workloads that directly follow another one of the same peer and reuse what it read."""

ALONE = ("import_package", "small_saves", "dcp_saves_and_loads")
"""Methods that need no checkpoint."""

SETTLE_S = 0.2
"""Pause before a measurement in which the device completes its background work."""


@dataclass(frozen=True)
class Turn:
    state: str
    work: Work
    peer: str
    run: int


def turns(state: State, chosen: list[Work], peers: list[type[Peer]], repeat: int) -> Iterator[Turn]:
    """Returns the measurements of one state, in order."""
    chosen = [w for w in chosen if state.name in w.states and w.impossible(state) is None]
    names = [work.name for work in chosen]
    for work in chosen:
        if BESIDE.get(work.name) in names:
            continue
        group = [work, *(w for w in chosen if BESIDE.get(w.name) == work.name)]
        able = [p for p in peers if any(_takes_part(p, w) for w in group)]
        for run in range(max(1, round(repeat * work.runs_share))):
            for place in range(len(able)):
                peer = able[(place + run) % len(able)]
                for each in group:
                    if _takes_part(peer, each):
                        yield Turn(state.name, each, peer.name, run + 1)


def _takes_part(peer: type[Peer], work: Work) -> bool:
    if not hasattr(peer, work.method) or work.name in peer.cannot_partly:
        return False
    return not peer.is_limit or peer.name in (*work.limits, *work.other_limits)


class Runner:
    """Measures one state. Owns the directories below `directory`, until `remove`."""

    def __init__(self, state: State, directory: Path, results: Results, deadline_s: float) -> None:
        self._state = state
        self._results = results
        self._deadline_s = deadline_s
        self._directory = directory / state.name
        self._log = directory / "peers.log"
        self._peers = {
            peer.name: peer(self._directory / (peer.saved_by or peer.name).replace(" ", "-"))
            for peer in PEERS
        }
        self._saved: set[Path] = set()
        self._late: set[tuple[Work, str]] = set()

    def measure(self, turn: Turn) -> list[Record]:
        """Returns the records of one turn, which it has added to the results."""
        peer = self._peers[turn.peer]
        if (turn.work, turn.peer) in self._late:
            records: list[Record] = [{"error": "not tried again, as it was late before"}]
        elif (error := self._prepare(turn.work, peer)) is not None:
            records = [{"error": f"no checkpoint to work on: {error}"}]
        else:
            records = self._measure_prepared(turn, peer)
        if LATE in records[0].get("error", ""):
            self._late.add((turn.work, turn.peer))  # waits for one deadline only
        for record in records:
            record |= {"state": turn.state, "work": turn.work.name, "peer": turn.peer}
            record |= {"run": turn.run, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        self._results.add(records)
        return records

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _measure_prepared(self, turn: Turn, peer: Peer) -> list[Record]:
        shutil.rmtree(peer.scratch, ignore_errors=True)
        if turn.work in SAVING:
            self._make_empty(peer.directory)
        cache = works.set_cache(turn.work, peer)
        peer.scratch.mkdir(parents=True)
        os.sync()  # writes back the dirty pages of other programs
        time.sleep(SETTLE_S)
        records = self._in_child(turn.work, peer, check=turn.run == 1)
        shutil.rmtree(peer.scratch, ignore_errors=True)
        if turn.work in SAVING and "error" not in records[0]:
            self._saved.add(peer.directory)
        return [record | cache for record in records]

    def _prepare(self, work: Work, peer: Peer) -> str | None:
        """Creates the checkpoint that the workload needs; returns an error or None."""
        if work in SAVING or work.method in ALONE or peer.directory in self._saved:
            return None
        self._make_empty(peer.directory)
        saver = self._peers.get(peer.saved_by or "", peer)
        records: list[Record] = [{}]
        if work.method == "open_metadata":
            make = saver.make_metadata  # type: ignore[attr-defined]
            log = self._log
            records = run_in_child(lambda: make(self._state.nbytes) or [], 900, log) or [{}]
        elif work.method == "ranks_load":
            saver.scratch.mkdir()
            records = self._in_child(RANKS_SAVE, saver, check=False)
        elif saver.can("save"):
            records = self._in_child(SAVE, saver, check=False)
        if "error" in records[0]:
            return records[0]["error"]
        self._saved.add(peer.directory)
        return None

    def _in_child(self, work: Work, peer: Peer, check: bool) -> list[Record]:
        measure = lambda: works.measure(work, peer, self._state, check)  # noqa: E731
        return run_in_child(measure, self._deadline_s, self._log)

    def _make_empty(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        self._saved.discard(directory)


class Progress:
    """Prints one line per measurement to standard error, with an estimate of the remaining time.

    Before a peer was measured at a workload, the estimate uses the bytes and typical rates.
    """

    BUFFERED_RATE = 0.4e9
    DIRECT_RATE = 1.0e9
    MEMORY_RATE = 3.0e9
    OVERHEAD_S = 0.5

    def __init__(self, plan: list[tuple[Turn, int]]) -> None:
        self._plan = plan
        self._seen: dict[tuple[str, str, str], list[float]] = {}
        self._done = 0

    def _guess(self, turn: Turn, nbytes: int) -> float:
        seen = self._seen.get((turn.state, turn.work.name, turn.peer))
        if seen:
            return sum(seen) / len(seen)
        peer = next(peer for peer in PEERS if peer.name == turn.peer)
        method = turn.work.method
        if method in ("save", *works.STALLS) and "memcpy" not in turn.peer:
            rate = self.DIRECT_RATE if peer.is_direct else self.BUFFERED_RATE
        else:
            rate = self.DIRECT_RATE if turn.work.cache == "evict" else self.MEMORY_RATE
        times = 1 + LATER_STALLS if method in works.STALLS else 1
        return self.OVERHEAD_S + times * nbytes / rate

    def left_s(self) -> float:
        return sum(self._guess(turn, nbytes) for turn, nbytes in self._plan[self._done :])

    def done(self, turn: Turn, took_s: float, records: list[Record]) -> None:
        self._seen.setdefault((turn.state, turn.work.name, turn.peer), []).append(took_s)
        self._done += 1
        last = records[-1]
        what = last.get("error") or f"{last['seconds']:.3f} s"
        print(
            f"[{self._done}/{len(self._plan)}, {self.left_s() / 60:.0f} min left] "
            f"{turn.state}, {turn.work.title}, {turn.peer}, run {turn.run}: {what}",
            file=sys.stderr,
            flush=True,
        )
