"""The workloads of compare.py, and how each is prepared, timed and checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import measure
from common.array_libraries import Orbax, TensorStore
from common.child import LATE, run_in_child
from common.library import CANNOT, Cairn, CairnLazy, CairnMapped, Library
from common.limits import Fio, Memcpy, MemcpyTwo, Sqlite, Sum
from common.measure import Meter
from common.states import State, Tensors, cut, total_bytes, zeros_like
from common.torch_libraries import Dcp, Moonclip, Safetensors, Torch, TorchMapped

Record = dict[str, Any]
PEERS: list[type[Library]] = [
    *(Cairn, CairnMapped, CairnLazy, Dcp, Torch, TorchMapped, Safetensors, Moonclip),
    *(TensorStore, Orbax, Sqlite, Fio, Memcpy, MemcpyTwo, Sum),
]
"""In the order in which tables show them."""
BUFFER_BYTES = 256 << 20
LATER_STALLS = 3
"""Number of saves in the background in one process, after the first one."""
SMALL_SAVES = 30
"""Number of small saves in one process, after the first one."""
SETTLE_S = 0.2
"""Pause before a measurement in which the device completes its background work."""
MAKE_S = 900
"""Deadline for the creation of a checkpoint with many chunks."""
NEEDS = {"small_saves": "save", "import": "modules"}
"""The member of the library that a workload needs, if it has another name."""
STALLS = ("begin_save", "begin_save_stating")
ALONE = ("import", "small_saves", *STALLS)
"""These begin with an empty place; all others work on a checkpoint."""


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    method: str
    limits: tuple[str, ...] = ()
    """Names of the limits; the workload is compared with the fastest of them."""
    cache: str | None = None
    """How the page cache is prepared: "evict", "warm", or None."""
    dim: int = 0
    """The dimension of boxes."""
    every: int = 0
    """For keys and changes: every N-th key; 0 selects none, 1 selects all."""
    states: tuple[str, ...] = ("transformer", "experts", "embedding")
    runs_share: float = 1
    """Fraction of the repeats, for workloads that produce several figures per run."""

    def keys(self, state: State) -> list[str]:
        return state.every(self.every) if self.every > 1 else list(state.tensors) * self.every

    def why_not(self, kind: type[Library]) -> str | None:
        """Returns why a library is not measured, or None."""
        method = NEEDS.get(self.method, self.method)
        for name in (self.name, self.method, method):
            if name in kind.cannot:
                return kind.cannot[name]
        return None if getattr(kind, method, None) else CANNOT.get(method, "has no such call")

    def is_measured(self, kind: type[Library], state: State) -> bool:
        if kind.is_limit and kind.name not in self.limits:
            return False
        return self.why_not(kind) is None and state.name in (kind.states or (state.name,))

    def bytes_of(self, state: State) -> int:
        """Returns the bytes to which the rates refer."""
        if self.method == "load_boxes":
            meta = {key: tensor.to("meta") for key, tensor in state.tensors.items()}
            return total_bytes(cut(meta, state.boxes(self.dim)))
        if self.method in ("load_keys", *STALLS):
            return state.bytes_of(self.keys(state))
        return 0 if self.method in ("open_many", "import") else state.nbytes


MEMCPY = ("memcpy 1 thread", "memcpy 2 threads")
WORKS = [
    Work("save", "durable full save", "save", ("fio",)),
    Work("load_cold", "cold full load, new tensors", "load", ("fio",), "evict"),
    Work("load_warm", "warm full load, new tensors", "load", MEMCPY, "warm"),
    Work("load_existing", "cold full load, existing tensors", "load_into", ("fio",), "evict"),
    Work("keys", "1 % of the keys, cold", "load_keys", cache="evict", every=100),
    Work("rows", "slice across rows, cold", "load_boxes", cache="evict", dim=0),
    Work("columns", "slice across columns, cold", "load_boxes", cache="evict", dim=1),
    Work("second_0", "second save, nothing changed", "save_again", ("sum 2 threads",)),
    Work("second_1", "second save, 1 % of the tensors changed", "save_again", every=100),
    Work("second_10", "second save, 10 % of the tensors changed", "save_again", every=10),
    Work("stall", "stall of save_async, all changed", "begin_save", MEMCPY, every=1,
         runs_share=0.4),
    Work("stall_1", "stall of save_async, 1 % of the tensors changed", "begin_save", MEMCPY,
         every=100, runs_share=0.4),
    Work("stall_stated", "stall of save_async, 1 % of the tensors changed, the others stated to be "
         "unchanged", "begin_save_stating", MEMCPY, every=100, runs_share=0.4),
    Work("open", "open and read one key", "open_many", cache="evict", states=("metadata",)),
    Work("import", "import the library, warm", "import", states=("metadata",)),
    Work("small_saves", "one durable save of many", "small_saves", states=("small",)),
]  # fmt: skip
SAVE = WORKS[0]


# In a child process -------------------------------------------------------------------------------


def _call(
    work: Work, library: Library, state: State
) -> tuple[Callable[[], Any], Callable[[], Tensors] | None]:
    """Returns what is timed, and a function for the tensors that it should return."""
    tensors, keys = state.tensors, work.keys(state)
    call = getattr(library, work.method)
    if work.method == "save":
        prepared = library.prepare(tensors)
        return lambda: (call(1, prepared), library.sync(1))[0], None
    if work.method == "save_again":
        state.change(keys)
        return lambda: call(2, tensors), lambda: tensors
    if work.method == "load":
        return lambda: call(1, tensors), lambda: tensors
    if work.method == "load_into":
        targets = tensors if library.is_limit else zeros_like(tensors)
        return lambda: call(1, targets) or targets, lambda: tensors
    if work.method == "load_keys":
        return lambda: call(1, tensors, keys), lambda: {key: tensors[key] for key in keys}
    if work.method == "load_boxes":
        boxes = state.boxes(work.dim)
        return lambda: call(1, tensors, boxes), lambda: cut(tensors, boxes)
    return lambda: call(state.nbytes), None


def _measure_call(work: Work, library: Library, state: State, check: bool) -> list[Record]:
    timed, expected = _call(work, library, state)
    is_load = work.method.startswith("load") and not library.is_limit
    measure.make_ready(BUFFER_BYTES + 2 * work.bytes_of(state))
    meter = Meter()
    result = timed()
    if is_load:
        measure.touch_pages(result)
    record: Record = meter.stop()
    if isinstance(result, float):  # a limit reports the seconds itself
        record["seconds"] = result
    elif is_load and work.method != "load_into":
        record["peak_bytes"] = max(0, record["peak_bytes"] - total_bytes(result))
    if check and expected is not None and not library.is_limit:
        loaded = result if is_load else library.load(2, state.tensors)
        wrong = measure.first_difference(loaded, expected())
        if wrong is not None:
            return [{"error": f"loaded something else than was saved: {wrong}"}]
        record["checked"] = True
    if work.method == "save_again":
        library.forget(2)
    library.finish()
    return [record]


def _measure_repeated(work: Work, library: Library, state: State) -> list[Record]:
    """Saves several times in one process. The first save allocates memory and creates files that
    later ones reuse, so the figures come from the later ones."""
    records = []
    is_stall = work.method in STALLS
    keys = work.keys(state) if is_stall else list(state.tensors)
    more = (keys,) if work.method == "begin_save_stating" else ()
    save = getattr(library, NEEDS.get(work.method, work.method))
    whole = Meter()
    for step in range(1, 2 + (LATER_STALLS if is_stall else SMALL_SAVES)):
        if step > 1 or not is_stall:
            state.change(keys)  # for limits too: gives the child its own pages
        prepared = library.prepare(state.tensors)
        meter = Meter(peak_from=whole)
        saving = save(step, prepared, *more)
        if is_stall:
            saving[0]()
        else:
            library.sync(step)
        record: Record = meter.stop()
        if is_stall:
            saving[1]()
            # The save continues in the background: its memory counts, whenever it is needed.
            record["peak_bytes"] = meter.stop()["peak_bytes"]
        records.append(record | {"first": step == 1})
        if is_stall and step > 1:
            library.forget(step - 1)
    return records


_TIME_IMPORT = """
import sys, time
times = time.perf_counter(), time.process_time()
__import__(sys.argv[1])
print(time.perf_counter() - times[0], time.process_time() - times[1])
"""


def _measure_import(library: Library) -> list[Record]:
    """Imports a module in a new interpreter. The time to start it is not part of the figures."""
    meter = Meter()
    command = [sys.executable, "-c", _TIME_IMPORT, library.modules[0]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output(command, env=environment, text=True)
    seconds, cpu = map(float, output.split())
    return [meter.stop() | {"seconds": seconds, "cpu_seconds": cpu}]


def run(work: Work, library: Library, state: State, check: bool) -> list[Record]:
    """Runs one measurement; `check` compares the result with the state."""
    if not work.method.startswith("load") or library.is_limit:
        measure.take_over(state.tensors)
    used = state.tensors
    if library.is_limit and work.method in STALLS:
        used = {key: used[key] for key in work.keys(state)}
    library.start(used, saves=not work.method.startswith(("load", "open", "import")))
    if work.method == "import":
        return _measure_import(library)
    if work.method in ALONE:
        return _measure_repeated(work, library, state)
    return _measure_call(work, library, state, check)


# In turns -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    work: Work
    kind: type[Library]
    run: int


def turns(
    state: State, chosen: list[Work], peers: list[type[Library]], repeat: int
) -> Iterator[Turn]:
    """Returns the measurements of one state: per workload and run, each library once, in an order
    that rotates."""
    for work in chosen:
        if state.name not in work.states or (work.every > 1 and not work.keys(state)):
            continue
        able = [peer for peer in peers if work.is_measured(peer, state)]
        for run in range(max(1, round(repeat * work.runs_share))):
            for place in range(len(able)):
                yield Turn(work, able[(place + run) % len(able)], run + 1)


class Runner:
    """Measures one state. Owns the directories below `directory`, until `remove`."""

    def __init__(self, state: State, directory: Path, deadline_s: float) -> None:
        self._state, self._deadline_s = state, deadline_s
        self._directory = directory / state.name
        self._log = directory / "libraries.log"
        self._saved: set[Path] = set()
        self._late: set[tuple[Work, str]] = set()

    def measure(self, turn: Turn) -> list[Record]:
        late = (turn.work, turn.kind.name)
        if late in self._late:
            records: list[Record] = [{"error": "not tried again, as it was late before"}]
        elif (error := self._prepare(turn.work, turn.kind)) is not None:
            records = [{"error": f"no checkpoint to work on: {error}"}]
        else:
            records = self._measure_prepared(turn)
        if LATE in records[0].get("error", ""):
            self._late.add(late)  # waits for one deadline only
        about = {"state": self._state.name, "work": turn.work.name, "peer": turn.kind.name}
        return [record | about | {"run": turn.run} for record in records]

    def remove(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def _place(self, work: Work, kind: type[Library]) -> Path:
        name = (kind.reads or kind.name).replace(" ", "-")
        return self._directory / (f"{name}-alone" if work.method in ALONE else name)

    def _measure_prepared(self, turn: Turn) -> list[Record]:
        place = self._place(turn.work, turn.kind)
        if turn.work.method in ("save", *ALONE):
            self._make_empty(place)
        if turn.work.cache == "warm":
            measure.warm(place)
        elif turn.work.cache == "evict":
            measure.evict(place)
        os.sync()  # writes back the dirty pages of other programs
        time.sleep(SETTLE_S)
        records = self._in_child(turn.work, turn.kind, check=turn.run == 1)
        if turn.work.method in ALONE:
            shutil.rmtree(place)
        elif turn.work is SAVE and "error" not in records[0]:
            self._saved.add(place)
        return records

    def _prepare(self, work: Work, kind: type[Library]) -> str | None:
        """Creates the checkpoint that the workload needs; returns an error or None."""
        place = self._place(work, kind)
        if work.method in ("save", *ALONE) or place in self._saved:
            return None
        self._make_empty(place)
        saver = next(peer for peer in [kind, *PEERS] if peer.name == (kind.reads or kind.name))
        records: list[Record] = [{}]
        if work.method == "open_many":
            make = lambda: [{"made": saver(place).make_many(self._state.nbytes)}]  # noqa: E731
            records = _as_list(run_in_child(make, MAKE_S, self._log))
        elif getattr(saver, "save", None):
            records = self._in_child(SAVE, saver, check=False)
        if "error" not in records[0]:
            self._saved.add(place)
        return records[0].get("error")

    def _in_child(self, work: Work, kind: type[Library], check: bool) -> list[Record]:
        library = kind(self._place(work, kind))
        timed = lambda: run(work, library, self._state, check)  # noqa: E731
        return _as_list(run_in_child(timed, self._deadline_s, self._log))

    def _make_empty(self, place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        self._saved.discard(place)


def _as_list(answer: Any) -> list[Record]:
    return answer if isinstance(answer, list) else [answer]
