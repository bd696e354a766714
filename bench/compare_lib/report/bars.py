"""The targets of Cairn, each with the measured figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compare_lib.results import Figure, Results

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Bar:
    state: str
    work: str
    asked: str
    measured: str
    is_met: bool | None
    """None: a figure that the target needs was not measured."""


class _Judge:
    """Evaluates the targets of one state and workload for the peer `ours`."""

    def __init__(self, results: Results, state: str, work: str, ours: str = "cairn") -> None:
        self._results = results
        self._state = state
        self._work = work
        title = results.data["works"].get(work, {}).get("title", work)
        self._title = title if ours == "cairn" else f"{title} ({ours})"
        self.ours = self.figure(ours)

    def figure(self, peer: str) -> Figure | None:
        return self._results.figure(self._state, self._work, peer)

    def about(self, key: str) -> float:
        return self._results.data["states"][self._state]["works"][self._work][key]

    def bar(self, asked: str, value: float | None, unit: str, is_met: bool) -> Bar:
        measured = "not measured" if value is None else f"{value:.3g}{unit}"
        return Bar(self._state, self._title, asked, measured, None if value is None else is_met)

    def at_least(self, asked: str, least: float, value: float | None, unit: str = "") -> Bar:
        return self.bar(
            f"≥ {least:g}{unit} {asked}", value, unit, value is not None and value >= least
        )

    def at_most(self, asked: str, most: float, value: float | None, unit: str = "") -> Bar:
        return self.bar(
            f"≤ {most:g}{unit} {asked}", value, unit, value is not None and value <= most
        )

    def of_limit(self) -> float | None:
        work = self._results.data["works"].get(self._work)
        limit = self._results.limit(self._state, self._work) if work else None
        return limit.median / self.ours.median if limit and self.ours else None

    def faster_than(self, peers: Sequence[str] | None = None) -> float | None:
        """Returns how many times faster we are than the fastest of `peers` (all by default)."""
        others = [self.figure(peer) for peer in (self._others() if peers is None else peers)]
        times = [figure.median for figure in others if figure]
        return min(times) / self.ours.median if times and self.ours else None

    def buffered(self) -> list[str]:
        about = self._results.data["peers"]
        return [peer for peer in self._others() if not about[peer]["is_direct"]]

    def least_peak(self) -> float | None:
        peaks = [figure.peak_bytes for figure in map(self.figure, self._others()) if figure]
        return min(peaks) / MIB if peaks else None

    def _others(self) -> list[str]:
        return [
            name
            for name, about in self._results.data["peers"].items()
            if not about["is_limit"] and not name.startswith("cairn")
        ]


def bars(results: Results) -> list[Bar]:
    """Returns the targets of everything that this run was asked to measure."""
    found = []
    for state, described in results.data["states"].items():
        for work, of_work in described["works"].items():
            if not of_work["impossible"]:
                found += _bars_of(results, state, work)
    return found + list(_small_tensors(results))


def _bars_of(results: Results, state: str, work: str) -> Iterator[Bar]:
    judge = _Judge(results, state, work)
    if work == "save":
        yield judge.at_least("of fio's write", 0.95, judge.of_limit())
        yield judge.at_least(
            "any peer that writes through the page cache",
            3,
            judge.faster_than(judge.buffered()),
            "×",
        )
        yield from _cpu(judge)
    elif work in ("load_cold", "load_existing"):
        yield judge.at_least("of fio's read", 0.95, judge.of_limit())
        yield judge.at_least("the fastest peer", 1.2, judge.faster_than(), "×")
    elif work == "load_warm":
        yield from _warm(results, state, work)
    elif work == "keys":
        yield from _keys(results, judge, state)
    elif work == "columns":
        read = judge.ours.read_bytes / judge.about("page_bytes") if judge.ours else None
        pages = "of the 64 KiB pages that it overlaps, including the records"
        yield judge.at_most(pages, 1.01, read)
        yield judge.at_least("DCP", 3, judge.faster_than(("dcp",)), "×")
    elif work == "second_0":
        least = 0.8 if _is_small(state) else 0.9
        yield judge.at_least("of two threads' sum", least, judge.of_limit())
        written = judge.ours.write_bytes / KIB if judge.ours else None
        yield judge.at_most("written", 64, written, " KiB")
    elif work == "open":
        yield judge.at_most("", 6, judge.ours.median * 1e3 if judge.ours else None, " ms")
        yield judge.at_least("DCP's metadata", 20, judge.faster_than(("dcp",)), "×")
    elif work == "import":
        yield judge.at_most("", 50, judge.ours.median * 1e3 if judge.ours else None, " ms")
    elif work == "ranks_save":
        yield judge.at_least("FileSystemWriter", 3, judge.faster_than(("dcp",)), "×")
    elif work == "ranks_load":
        yield judge.at_least("FileSystemReader", 1.2, judge.faster_than(("dcp",)), "×")
    elif work == "stall":
        share = judge.of_limit()
        yield judge.at_most("of memcpy's time", 1.1, 1 / share if share else None)
        yield judge.at_least("DCP", 1, judge.faster_than(("dcp",)), "×")
    elif work == "stall_1":
        share = judge.of_limit()
        yield judge.at_most("of memcpy's time, changed bytes", 1.1, 1 / share if share else None)
    elif work == "stall_stated":
        yield judge.at_most("", 3, judge.ours.median * 1e3 if judge.ours else None, " ms")
    elif work == "small_saves":
        share = judge.of_limit()
        yield judge.at_most("of the file operations", 1.2, 1 / share if share else None)
        for peer in ("sqlite", "dcp"):
            yield judge.at_least(peer, 1, judge.faster_than((peer,)), "×")
    elif work == "small_dcp":
        yield judge.at_least("DCP's own files", 1, judge.faster_than(("dcp",)), "×")
    if work in ("save", "load_cold", "load_existing"):
        yield from _peak(judge)


def _is_small(state: str) -> bool:
    return state == "experts"


def _warm(results: Results, state: str, work: str) -> Iterator[Bar]:
    judge = _Judge(results, state, work)
    least, ahead = (0.8, 1.1) if _is_small(state) else (0.9, 1)
    yield judge.at_least("of memcpy into fresh memory", least, judge.of_limit())
    yield judge.at_least("safetensors", ahead, judge.faster_than(("safetensors",)), "×")
    judge = _Judge(results, state, work, "cairn mmap")
    total = judge.figure("sum 2 threads")
    share = total.median / judge.ours.median if total and judge.ours else None
    yield judge.at_least("of two threads' sum", 0.9, share)
    judge = _Judge(results, state, work, "cairn lazy")
    yield judge.at_least("safetensors", 1, judge.faster_than(("safetensors",)), "×")


def _cpu(judge: _Judge) -> Iterator[Bar]:
    def per_gb(peer: Figure | None) -> float | None:
        return peer.cpu_seconds / judge.about("bytes") * 1e9 if peer else None

    ours, theirs = per_gb(judge.ours), per_gb(judge.figure("dcp"))
    yield judge.at_most("of CPU per GB", 0.2, ours, " s")
    yield judge.at_most("of DCP's CPU", 1, ours / theirs if ours and theirs else None)


def _keys(results: Results, judge: _Judge, state: str) -> Iterator[Bar]:
    full = results.figure(state, "load_cold", "cairn")
    read = judge.ours.read_bytes / judge.about("bytes") if judge.ours else None
    yield judge.at_most("of their bytes read", 1.05, read)
    allowed = full.median * 0.02 + 0.005 if full else None
    share = judge.ours.median / allowed if allowed and judge.ours else None
    yield judge.at_most("of 2 % of a full load's time and 5 ms", 1, share)
    yield judge.at_least("the fastest peer", 2, judge.faster_than(), "×")


def _peak(judge: _Judge) -> Iterator[Bar]:
    ours, least = judge.ours.peak_bytes / MIB if judge.ours else None, judge.least_peak()
    yield judge.at_most("beyond the tensors", 16, ours, " MiB")
    share = ours / least if ours is not None and least else None
    yield judge.at_most("of the lowest peak of any peer", 1, share)


def _small_tensors(results: Results) -> Iterator[Bar]:
    """Compares many small tensors with one large tensor of the same size."""
    if not {"experts", "embedding"} <= results.data["states"].keys():
        return
    for work in ("save", "load_cold", "load_existing"):
        if work not in results.data["works"]:
            continue
        judge = _Judge(results, "experts", work)
        large = results.figure("embedding", work, "cairn")
        share = judge.ours.median / large.median if judge.ours and large else None
        yield judge.at_most("of the time of one large tensor", 1.15, share)
        yield judge.at_least("DCP", 3, judge.faster_than(("dcp",)), "×")
