"""The machine's own limits, measured in the same turns as the libraries, and SQLite."""

from __future__ import annotations

import json
import mmap
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np

from common.library import Library, Saving
from common.states import Tensors, byte_view, total_bytes

PIECE_BYTES = 4 << 20


class Limit(Library):
    is_limit = is_durable = True

    def start(self, state: Tensors, saves: bool) -> None:
        """Divides the memory of the tensors into pieces that threads can share evenly."""
        views = [byte_view(tensor) for tensor in state.values()]
        self.pieces = [
            view[begin : begin + PIECE_BYTES]
            for view in views
            for begin in range(0, len(view), PIECE_BYTES)
        ]

    def forget(self, step: int) -> None:
        """Keeps no steps."""


class Fio(Limit):
    """Measures the device: writes and reads the same bytes in one file without the page cache."""

    name = "fio"
    block_bytes: ClassVar[int] = 4 << 20
    remark = "O_DIRECT, io_uring, 8 requests of --block-mib in flight; the write ends in fsync"

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("fio") else "the program is not installed (apt install fio)"

    def _run(self, nbytes: int, direction: str, *options: str) -> float:
        size = -(-nbytes // 4096) * 4096
        command = [
            "fio", "--name=limit", f"--filename={self.folder / 'fio'}", f"--size={size}",
            "--ioengine=io_uring", f"--bs={min(self.block_bytes, size)}", "--direct=1",
            "--iodepth=8", "--output-format=json", f"--rw={direction}", *options,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"fio failed: {(done.stderr or done.stdout).strip()[-300:]}")
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][direction]
        # fio omits bytes that do not fill a block.
        return job["runtime"] / 1000 * nbytes / job["io_bytes"]

    def save(self, step: int, state: Tensors) -> float:
        return self._run(total_bytes(state), "write", "--end_fsync=1")

    def load(self, step: int, like: Tensors) -> float:
        return self._run(total_bytes(like), "read")

    load_into = load


def _in_threads(threads: int, work: Callable[[int], object], count: int) -> None:
    """Calls work(0 .. count - 1); each thread takes the next item when it is free."""
    numbers = iter(range(count))  # its next() is atomic

    def run() -> None:
        for number in numbers:
            work(number)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run) for _ in range(threads)]:
            done.result()


class Memcpy(Limit):
    """Copies the state: into new memory for loads, into touched memory for stalls."""

    name = "memcpy 1 thread"
    threads: ClassVar[int] = 1
    remark = "copies the state's tensors; in huge pages, new for loads, touched for stalls"
    _target: mmap.mmap | None = None

    def _copy(self) -> None:
        ends = np.cumsum([0, *(piece.nbytes for piece in self.pieces)])
        if self._target is None:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._target = mmap.mmap(-1, int(ends[-1]), flags=flags)
            self._target.madvise(mmap.MADV_HUGEPAGE)
        view = np.frombuffer(self._target, np.uint8)

        def copy(i: int) -> None:
            view[ends[i] : ends[i + 1]] = self.pieces[i]

        _in_threads(self.threads, copy, len(self.pieces))

    def load(self, step: int, like: Tensors) -> None:
        self._copy()

    def begin_save(self, step: int, state: Tensors) -> Saving:
        self._copy()
        return lambda: None, lambda: None

    def begin_save_stating(self, step: int, state: Tensors, keys: list[str]) -> Saving:
        return self.begin_save(step, state)


class MemcpyTwo(Memcpy):
    name = "memcpy 2 threads"
    threads = 2


class Sum(Limit):
    """Two threads sum up the state's tensors: the fastest that any program can read them."""

    name = "sum 2 threads"
    remark = "sums 64-bit words with numpy"

    def load(self, step: int, like: Tensors) -> None:
        words = [piece[: piece.nbytes // 8 * 8].view(np.uint64) for piece in self.pieces]
        _in_threads(2, lambda i: np.add.reduce(words[i]), len(words))

    save_again = load


class Sqlite(Library):
    """A database that keeps every save as one blob."""

    name = "sqlite"
    modules = ("sqlite3",)
    states = ("small",)
    is_durable = True
    remark = "one blob per save and transaction; write-ahead log, synchronous=FULL"

    def start(self, state: Tensors, saves: bool) -> None:
        self._database = sqlite3.connect(self.folder / "saves.db", isolation_level=None)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=FULL")
        self._database.execute("CREATE TABLE saves (step INTEGER PRIMARY KEY, bytes BLOB)")

    def save(self, step: int, state: Tensors) -> None:
        blob = b"".join(memoryview(byte_view(tensor)) for tensor in state.values())
        self._database.execute("INSERT INTO saves VALUES (?, ?)", (step, blob))
