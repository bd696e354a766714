#!/usr/bin/env python
"""Compares what loads of checkpoint libraries find after killed saves and with flipped bits.

    .venv/bin/python bench/libraries.py --dir /mnt/disk/compare

Kills processes at evenly spaced moments of a save, of a new step and of a replacement, and asks a
new process for the latest checkpoint. Flips single bits in all bytes, and in the records (headers,
indexes, metadata), each of which is equally likely, and loads everything. bench/compare.py measures
times. Needs the packages of bench/requirements.txt
and python/requirements-integrations.txt; libraries that are not installed are left out.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import torch

from common import report
from common.array_libraries import Orbax, TensorStore
from common.child import run_in_child
from common.library import Cairn, Library
from common.measure import files_of, first_difference
from common.states import Tensors, fill
from common.torch_libraries import Dcp, Moonclip, Safetensors

KINDS = {kind.name: kind for kind in (Cairn, Dcp, Safetensors, Moonclip, TensorStore, Orbax)}
DEADLINE_S = 600.0
OUTCOMES = {
    "new": "the new state",
    "old": "the old state",
    "damaged": "a checkpoint that does not load",
    "nothing": "no checkpoint",
    "finished": "finished",
}
FLIPPED = {"error": "an error", "wrong": "wrong values", "none": "right values", "crash": "a crash"}


def make(layers: int, step: int) -> Tensors:
    """The state of a step; all values differ from every other step. 4 MiB per layer."""
    return fill({f"layers.{i}.weight": torch.empty(1024, 1024) for i in range(layers)}, step)


class Trials:
    """Measures one library. Each action runs in a new process."""

    def __init__(self, kind: type[Library], folder: Path, log: Path) -> None:
        self._kind, self._folder, self._log = kind, folder, log

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    def _in_child(self, work: Callable[[Library], Any], like: Tensors, saves: bool) -> Any:
        def run() -> Any:
            library = self._kind(self._folder)
            library.start(like, saves)
            return work(library)

        return run_in_child(run, DEADLINE_S, self._log)

    def kill(self, share: float, replace: bool, layers: int) -> str:
        """Kills a save after this share of its time, and returns what a new process finds."""
        self._clear()
        states = {step: make(layers, step) for step in (1, 2, 3)}

        def save_and_die(library: Library) -> str:
            save = library.replace if replace else library.save
            seconds = 0.0  # of the last save
            for step in (1, 2, 3):
                prepared = library.prepare(states[step])
                if step == 3:
                    # The default action of this signal ends the process at once.
                    signal.signal(signal.SIGALRM, signal.SIG_DFL)
                    signal.setitimer(signal.ITIMER_REAL, seconds * share)
                begin = time.perf_counter()
                save(1 if replace else step, prepared)
                seconds = time.perf_counter() - begin
                if step < 3:
                    library.sync(1 if replace else step)
            signal.setitimer(signal.ITIMER_REAL, 0)
            return "finished"

        answer = self._in_child(save_and_die, states[1], saves=True)
        if answer == "finished":
            return answer
        if not answer["error"].startswith("its process died"):
            raise RuntimeError(f"{self._kind.name}: {answer['error']}; see {self._log}")

        def find(library: Library) -> str:
            latest = library.latest()
            if latest is None:
                return "nothing"
            loaded = library.load(latest, states[1])
            for step, outcome in ((3, "new"), (2, "old")):
                if (replace or latest == step) and not first_difference(loaded, states[step]):
                    return outcome
            return "damaged"

        answer = self._in_child(find, states[1], saves=False)
        return answer if isinstance(answer, str) else "damaged"

    def flip(self, flips: int, is_record: bool, layers: int) -> dict[str, int]:
        """Flips one bit at a time in a checkpoint, and counts what a load gives."""
        self._clear()
        state = make(layers, 1)

        def save(library: Library) -> None:
            library.save(1, library.prepare(state))

        if (answer := self._in_child(save, state, saves=True)) is not None:
            raise RuntimeError(f"{self._kind.name}: {answer['error']}; see {self._log}")
        lengths = {
            file: self._kind.is_record(file) if is_record else file.stat().st_size
            for file in files_of(self._folder)
            if file.stat().st_size
        }
        ranges = [(file, length) for file, length in lengths.items() if length]
        generator = random.Random(20261126)
        outcomes: Counter[str] = Counter()

        def load(library: Library) -> str:
            return "wrong" if first_difference(library.load(1, state), state) else "none"

        for _ in range(flips):
            weights = None if is_record else [length for _, length in ranges]
            [(path, length)] = generator.choices(ranges, weights)
            position, bit = generator.randrange(length), generator.randrange(8)
            _flip(path, position, bit)
            answer = self._in_child(load, state, saves=False)
            _flip(path, position, bit)
            if isinstance(answer, str):
                outcomes[answer] += 1
            else:
                outcomes["crash" if answer["error"].startswith("its process") else "error"] += 1
        return dict(outcomes)


def _flip(path: Path, position: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        [value] = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ (1 << bit)]))


def measure(options: Any, kind: type[Library], scratch: Path) -> dict[str, Any]:
    trials = Trials(kind, scratch / "saves", options.out / "libraries.log")
    shares = [(trial + 0.5) / options.kills for trial in range(options.kills)]
    found: dict[str, Any] = {}
    for name, replace in (("a new step", False), ("a replacement", True)):
        if not replace or hasattr(kind, "replace"):
            outcomes = Counter(trials.kill(share, replace, options.layers) for share in shares)
            found.setdefault("kills", {})[name] = dict(outcomes)
    for name, is_record in (("all bytes", False), ("the records", True)):
        found.setdefault("flips", {})[name] = trials.flip(options.flips, is_record, 1)
    return found


def tables(libraries: dict[str, Any]) -> list[str]:
    parts = []
    for part, title, outcomes in (
        ("kills", "Killed saves", OUTCOMES),
        ("flips", "Flipped bits", FLIPPED),
    ):
        rows = [
            [f"{name}, {case}", *(str(counts.get(one, 0)) for one in outcomes)]
            for name, of in libraries.items()
            for case, counts in of[part].items()
        ]
        parts += [f"## {title}", report.table(("", *outcomes.values()), rows)]
    return parts


def main() -> None:
    parser = report.options(__doc__)
    add = parser.add_argument
    add("libraries", nargs="*", metavar="LIBRARY", help=f"by default all: {', '.join(KINDS)}")
    add("--layers", type=int, default=16, help="4 MiB each (16)")
    add("--kills", type=int, default=16, help="killed saves of each library and kind (16)")
    add("--flips", type=int, default=64, help="flipped bits in all bytes, and in records (64)")
    options = report.parse(parser)
    if unknown := sorted(set(options.libraries) - KINDS.keys()):
        parser.error(f"unknown libraries {unknown}; there are {list(KINDS)}")
    kinds = [KINDS[name] for name in options.libraries or KINDS]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="libraries-", dir=options.dir) as scratch:
        for kind in kinds:
            if reason := kind.missing():
                print(f"{kind.name} is left out: {reason}", file=sys.stderr)
                continue
            found[kind.name] = measure(options, kind, Path(scratch))
            print(f"{kind.name}: {found[kind.name]}", file=sys.stderr, flush=True)
    about = report.describe(options.dir, [p for kind in kinds for p in kind.packages])
    parts = tables(found)
    result = about | {"libraries": found}
    report.write(options.out / "libraries", "Killed saves and flipped bits", result, parts)


if __name__ == "__main__":
    main()
