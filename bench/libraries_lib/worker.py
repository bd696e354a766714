"""Works with the libraries, as bench/libraries.py asks for by lines of JSON.

    python worker.py CONTENDER...

This process imports the libraries, and forks a worker for each line with a contender, a folder and
a number of layers. The worker answers the lines that follow, until one has `end` or it is killed.
Each answer is a line of JSON with the prefix ANSWER; an exception of the library is an answer with
`error`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "build" / "python")]

import numpy as np  # noqa: E402

from libraries_lib.contenders import CONTENDERS  # noqa: E402
from libraries_lib.states import CHANGED, PAGE_VALUES, Arrays, make, quarter  # noqa: E402

LARGE = "layers.0.mlp.up"  # the tensor that is loaded alone; no step of the kind `part` changes it


def read_bytes() -> int:
    """What this process has read from disks."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


class Worker:
    """Answers commands. States are made again for each, so that they never share memory."""

    def __init__(self, contender: str, folder: Path, layers: int) -> None:
        self._contender = CONTENDERS[contender](folder)
        self._folder = folder
        self._layers = layers
        self._synced: dict[Path, tuple[int, int]] = {}

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        do = getattr(self, "_" + command.pop("do"))
        return do(**command)

    def _save(self, step: int, kind: str, replace: bool = False) -> dict[str, Any]:
        state = self._contender.prepare(make(self._layers, step, kind))
        changed = list(CHANGED) if kind == "part" and step > 1 else None
        self._sync()
        print("BEGIN", flush=True)  # from here on, the process may be killed
        begin = time.perf_counter()
        self._contender.save(1 if replace else step, state, changed, replace)
        seconds = time.perf_counter() - begin
        durable = seconds
        if self._contender.title != "Cairn":
            durable += self._sync()
        return {"seconds": seconds, "durable": durable}

    def _sync(self) -> float:
        """Syncs the files and folders that the library has written and not synced."""
        begin = time.perf_counter()
        for path in [self._folder, *self._folder.rglob("*")]:
            status = path.lstat()
            version = (status.st_mtime_ns, status.st_size)
            if self._synced.get(path) != version:
                self._synced[path] = version
                descriptor = os.open(path, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)
        return time.perf_counter() - begin

    def _latest(self) -> dict[str, Any]:
        return {"step": self._contender.latest()}

    def _measure(self, load: Callable[[], Any], expected: Arrays) -> dict[str, Any]:
        before, begin = read_bytes(), time.perf_counter()
        found = self._contender.arrays(load())
        for key in expected:  # some only map the file
            found[key].reshape(-1)[::PAGE_VALUES].sum()
        seconds = time.perf_counter() - begin
        equal = found.keys() >= expected.keys() and all(
            np.array_equal(found[key], value) for key, value in expected.items()
        )
        wanted = sum(value.nbytes for value in expected.values())
        used = read_bytes() - before
        return {"seconds": seconds, "read_bytes": used, "wanted_bytes": wanted, "equal": equal}

    def _load(self, step: int, kind: str, at: int | None = None) -> dict[str, Any]:
        """`at` is the number by which the library knows the step, if it was replaced."""
        expected = make(self._layers, step, kind)
        state = self._contender.prepare(expected)
        number = step if at is None else at
        return self._measure(lambda: self._contender.load(number, state), expected)

    def _load_one(self, step: int, kind: str) -> dict[str, Any]:
        arrays = make(self._layers, step, kind)
        state = self._contender.prepare(arrays)
        load = self._contender.load_keys
        return self._measure(lambda: load(step, state, [LARGE]), {LARGE: arrays[LARGE]})

    def _load_boxes(self, step: int, kind: str, axis: int) -> dict[str, Any]:
        arrays = make(self._layers, step, kind)
        state, boxes = self._contender.prepare(arrays), quarter(arrays, axis)
        expected = {key: arrays[key][box] for key, box in boxes.items()}
        return self._measure(lambda: self._contender.load_boxes(step, state, boxes), expected)

    def _save_rows(self, step: int) -> dict[str, Any]:
        self._contender.save_rows(step, matrices(make(self._layers, step, "all")))
        return {}

    def _load_columns(self, step: int) -> dict[str, Any]:
        expected = matrices(make(self._layers, step, "all"))
        return self._measure(lambda: self._contender.load_columns(step, expected), expected)


def matrices(arrays: Arrays) -> Arrays:
    return {key: array for key, array in arrays.items() if array.ndim == 2}


def read_line() -> dict[str, Any] | None:
    """Unbuffered, because the worker and the process that forks it read in turn."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            return None
        line += piece
    return json.loads(line)


def answer(found: dict[str, Any]) -> None:
    print("ANSWER " + json.dumps(found), flush=True)


def work(contender: str, folder: str, layers: int) -> None:
    os.setpgid(0, 0)  # the library's own processes are killed with this one
    worker = Worker(contender, Path(folder), layers)
    answer({"pid": os.getpid()})
    while command := read_line():
        if "end" in command:
            return
        try:
            found = worker.answer(command)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # CheckpointException of DCP is not an Exception
            found = {"error": f"{type(error).__name__}: {error}"[:500]}
        answer(found)


def main() -> None:
    for name in sys.argv[1:]:
        CONTENDERS[name](Path("."))
    while wanted := read_line():
        child = os.fork()
        if child == 0:
            try:
                work(**wanted)
            finally:
                os._exit(0)  # the libraries' threads have nothing left to do
        os.waitpid(child, 0)
        answer({"ended": child})


if __name__ == "__main__":
    main()
