"""What is measured of each library: times and bytes, kills during saves, and flipped bits."""

from __future__ import annotations

import importlib.util
import random
import statistics
import struct
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compare_lib import page_cache

from libraries_lib.contenders import CONTENDERS, clear
from libraries_lib.process import Died, Libraries

SEED = 20261126


@dataclass(frozen=True)
class Options:
    folder: Path
    """Where the contenders save; its contents are removed."""
    log: Path
    layers: int
    """The state that is timed has so many. Kills use a quarter of them, and flips one."""
    repeat: int
    kills: int
    """This many processes are killed for each kind of save."""
    flips: int
    """In all bytes, and as many in the records alone."""


def space(folder: Path) -> dict[str, int]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {"files": len(files), "bytes": sum(path.stat().st_blocks * 512 for path in files)}


class Failed(Exception):
    """A library did not do what it should; the text contains the answer."""


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer or not answer.get("equal", True):
        raise Failed(str(answer))
    return answer


def time_once(libraries: Libraries, name: str, options: Options) -> dict[str, Any]:
    """Saves two steps, of which the second differs in one hundredth, and loads the second."""
    clear(options.folder)
    figures: dict[str, Any] = {}
    with libraries.worker(name, options.folder, options.layers) as worker:
        # The first save of a process allocates and opens what later ones use again.
        _checked(worker.ask("save", step=1, kind="part"))
        figures["space_1"] = space(options.folder)
        figures["save_part"] = _checked(worker.ask("save", step=2, kind="part"))
        figures["space_2"] = space(options.folder)
        figures["save_all"] = _checked(worker.ask("save", step=3, kind="all"))
    loads = {"load": {}, "load_one": {}}
    if CONTENDERS[name].loads_boxes:
        loads |= {"load_rows": {"axis": 0}, "load_columns": {"axis": 1}}
    with libraries.worker(name, options.folder, options.layers) as worker:
        # Loads once, so that what is imported and allocated then is not counted.
        _checked(worker.ask("load", step=3, kind="all"))
        for figure, more in loads.items():
            do = "load_boxes" if more else figure
            page_cache.evict(options.folder)
            figures[figure] = _checked(worker.ask(do, step=3, kind="all", **more))
        page_cache.warm(options.folder)
        figures["load_warm"] = _checked(worker.ask("load", step=3, kind="all"))
    if CONTENDERS[name].uses_jax and importlib.util.find_spec("jax") is not None:
        figures["reshard"] = _time_reshard(libraries, name, options)
    return figures


def _time_reshard(libraries: Libraries, name: str, options: Options) -> dict[str, Any]:
    clear(options.folder)
    with libraries.worker(name, options.folder, options.layers) as worker:
        _checked(worker.ask("save_rows", step=1))
        _checked(worker.ask("load_columns", step=1))
        page_cache.evict(options.folder)
        return _checked(worker.ask("load_columns", step=1))


def kill_once(
    libraries: Libraries, name: str, options: Options, share: float, replace: bool
) -> tuple[str, float]:
    """Kills a save after this share of its time. Returns what a new process finds, and the bytes
    beyond those of complete steps that remain after one more save, as a share of a step."""
    clear(options.folder)
    layers = max(1, options.layers // 4)
    arguments = {"kind": "all", "replace": replace}
    with libraries.worker(name, options.folder, layers) as worker:
        _checked(worker.ask("save", step=1, **arguments))
        seconds = _checked(worker.ask("save", step=2, **arguments))["seconds"]
        one_step = space(options.folder)["bytes"] // (1 if replace else 2)
        was_running = worker.kill_during(seconds * share, "save", step=3, **arguments)
    if not was_running:
        return "finished", 0
    with libraries.worker(name, options.folder, layers) as worker:
        outcome = _find(worker, replace)
        if replace or outcome not in ("new", "old"):
            return outcome, 0
        _checked(worker.ask("save", step=4, kind="all"))
    complete = 4 if outcome == "new" else 3
    return outcome, max(0.0, space(options.folder)["bytes"] / one_step - complete)


def _find(worker: WorkerProcess, replace: bool) -> str:
    """`new` or `old`: the step that the library considers the latest is complete."""
    found = worker.ask("latest").get("step")
    if found is None:
        return "nothing"
    numbers = {3: "new", 2: "old"}
    if replace or found == 3:
        for number, outcome in numbers.items():
            answer = worker.ask("load", step=number, kind="all", at=found)
            if answer.get("equal"):
                return outcome
        return "damaged"
    return "old" if worker.ask("load", step=found, kind="all").get("equal") else "damaged"


def kill(libraries: Libraries, name: str, options: Options, replace: bool) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    left: list[float] = []
    for trial in range(options.kills):
        outcome, extra = kill_once(libraries, name, options, (trial + 0.5) / options.kills, replace)
        outcomes[outcome] += 1
        if outcome in ("old", "new"):
            left.append(extra)
    return {"outcomes": dict(outcomes), "left": statistics.median(left or [0.0])}


def _record_ranges(name: str, folder: Path) -> list[tuple[Path, int]]:
    """Files that describe the checkpoint, with how many of their bytes do."""
    if name == "safetensors":
        [path] = folder.glob("*.safetensors")
        with open(path, "rb") as file:
            return [(path, 8 + struct.unpack("<Q", file.read(8))[0])]
    contender = CONTENDERS[name]
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    return [(path, path.stat().st_size) for path in files if contender.is_record(path)]


def _flip(path: Path, position: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        [value] = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ (1 << bit)]))


def flip(libraries: Libraries, name: str, options: Options) -> dict[str, dict[str, int]]:
    """Flips one bit at a time in a checkpoint, and loads it. Counts the outcomes: `error`, `wrong`
    (other values are loaded), `none` (the values are right), `crash`."""
    clear(options.folder)
    with libraries.worker(name, options.folder, 1) as worker:
        _checked(worker.ask("save", step=1, kind="all"))
    files = sorted(path for path in options.folder.rglob("*") if path.is_file())
    everything = [(path, path.stat().st_size) for path in files if path.stat().st_size]
    generator = random.Random(SEED)
    found: dict[str, dict[str, int]] = {}
    for part, ranges in ("all", everything), ("records", _record_ranges(name, options.folder)):
        worker = libraries.worker(name, options.folder, 1)
        outcomes: Counter[str] = Counter()
        for _ in range(options.flips):
            # Each byte is equally likely in the one part, each record in the other.
            weights = [length for _, length in ranges] if part == "all" else None
            [(path, length)] = generator.choices(ranges, weights)
            position, bit = generator.randrange(length), generator.randrange(8)
            _flip(path, position, bit)
            try:
                answer = worker.ask("load", step=1, kind="all")
                outcome = "error" if "error" in answer else "none" if answer["equal"] else "wrong"
            except Died:
                worker.kill()
                worker, outcome = libraries.worker(name, options.folder, 1), "crash"
            _flip(path, position, bit)
            outcomes[outcome] += 1
        worker.kill()
        found[part] = dict(outcomes)
    return found


def measure(options: Options, names: list[str]) -> dict[str, Any]:
    """The figures of each contender. The contenders take turns in the part that is timed."""
    with Libraries(names, options.log) as libraries:
        return _measure(libraries, options, names)


def _measure(libraries: Libraries, options: Options, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: {"title": CONTENDERS[name].title, "runs": []} for name in names
    }  # fmt: skip
    for repetition in range(options.repeat):
        turn = repetition % len(names)
        for name in (names * 2)[turn : turn + len(names)]:
            figures = time_once(libraries, name, options)
            found[name]["runs"].append(figures)
            text = f"save {figures['save_all']['durable']:.3f} s, "
            text += f"load {figures['load']['seconds']:.3f} s"
            print(f"{name}, {repetition + 1} of {options.repeat}: {text}", file=sys.stderr)
    for name in names:
        found[name]["kill_new"] = kill(libraries, name, options, False)
        if CONTENDERS[name].replaces:
            found[name]["kill_replace"] = kill(libraries, name, options, True)
        found[name]["flip"] = flip(libraries, name, options)
        rest = {key: value for key, value in found[name].items() if key != "runs"}
        print(f"{name}: {rest}", file=sys.stderr)
    return found
