"""The machine's own limits, measured in the same turns as the peers."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import torch

from compare_lib.peers.base import Finish, Peer, Reported, Steps, sync_path
from compare_lib.states import State, Tensors, byte_view


class Fio(Peer):
    """Measures the device: writes and reads the same bytes in one file without the page cache."""

    name = "fio"
    is_limit = True
    is_direct = True
    block_bytes: ClassVar[int] = 4 << 20
    remarks = ("O_DIRECT, io_uring, 8 requests of --block-mib in flight; the write ends in fsync",)

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("fio") else "the program is not installed (apt install fio)"

    def _run(self, nbytes: int, direction: str, *options: str) -> Reported:
        size = -(-nbytes // 4096) * 4096
        command = [
            "fio", "--name=limit", f"--filename={self.directory / 'fio'}", f"--size={size}",
            "--ioengine=io_uring", f"--bs={min(self.block_bytes, size)}", "--direct=1",
            "--iodepth=8", "--output-format=json", f"--rw={direction}", *options,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"fio failed: {(done.stderr or done.stdout).strip()[-300:]}")
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][direction]
        # fio omits bytes that do not fill a block.
        return Reported(job["runtime"] / 1000 * nbytes / job["io_bytes"])

    def save(self, state: State) -> Steps:
        yield
        yield self._run(state.nbytes, "write", "--end_fsync=1")

    def load_new(self, state: State) -> Steps:
        yield
        yield self._run(state.nbytes, "read")

    def load_existing(self, state: State, targets: Tensors) -> Steps:
        return self.load_new(state)


PIECE_BYTES = 4 << 20


def _new_memory(nbytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _pieces(tensors: Iterable[torch.Tensor]) -> list[np.ndarray]:
    """Divides the memory of the tensors into pieces that threads can share evenly."""
    views = [byte_view(tensor) for tensor in tensors]
    return [
        view[begin : begin + PIECE_BYTES]
        for view in views
        for begin in range(0, len(view), PIECE_BYTES)
    ]


def _in_threads(threads: int, work: Callable[[int], None], count: int) -> None:
    """Calls work(0 .. count - 1); each thread takes the next item when it is free."""
    numbers = iter(range(count))  # its next() is atomic

    def run() -> None:
        for number in numbers:
            work(number)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run) for _ in range(threads)]:
            done.result()


class Memcpy(Peer):
    """Copies the state: into new memory for loads, into touched memory for stalls."""

    name = "memcpy 1 thread"
    is_limit = True
    threads: ClassVar[int] = 1
    remarks = ("copies the state's tensors; in huge pages, new for loads, touched for stalls",)

    def _copy(self, target: mmap.mmap, pieces: list[np.ndarray]) -> None:
        ends = np.cumsum([0, *(piece.nbytes for piece in pieces)])
        view = np.frombuffer(target, np.uint8)

        def copy(i: int) -> None:
            view[ends[i] : ends[i + 1]] = pieces[i]

        _in_threads(self.threads, copy, len(pieces))

    def load_new(self, state: State) -> Steps:
        pieces = _pieces(state.tensors.values())
        yield
        target = _new_memory(state.nbytes)
        self._copy(target, pieces)
        yield None
        del target

    def save_async(self, state: State, keys: list[str]) -> Callable[[], Finish]:
        pieces = _pieces(state.tensors[key] for key in keys)
        nbytes = sum(piece.nbytes for piece in pieces)
        target = _new_memory(nbytes)
        self._copy(target, pieces)

        def stall() -> Finish:
            self._copy(target, pieces)
            return lambda: None

        return stall

    def save_async_stated(self, state: State, keys: list[str]) -> Callable[[], Finish]:
        return self.save_async(state, keys)


class MemcpyTwo(Memcpy):
    name = "memcpy 2 threads"
    threads = 2


class Sum(Peer):
    """Two threads sum up the state's tensors: the fastest that any program can read them."""

    name = "sum 2 threads"
    is_limit = True
    remarks = ("sums 64-bit words with numpy",)

    def second_save(self, state: State, keys: list[str]) -> Steps:
        return self.load_new(state)

    def load_new(self, state: State) -> Steps:
        pieces = _pieces(state.tensors.values())
        words = [piece[: piece.nbytes // 8 * 8].view(np.uint64) for piece in pieces]
        sums = [np.uint64(0)] * len(words)

        def add(i: int) -> None:
            sums[i] = np.add.reduce(words[i])

        yield
        _in_threads(2, add, len(words))
        yield None


class FileOperations(Peer):
    """What a save of Cairn needs of the file system: three new files, one after the other."""

    name = "file operations"
    is_limit = True
    only_states = ("small",)
    remarks = (
        "writes three new files in three directories, the state and twice 4 KiB: create, write, "
        "fdatasync, rename, fsync of the directory",
    )

    def small_saves(self, state: State) -> Callable[[int], None]:
        folders = [self.scratch / name for name in ("segments", "tables", "roots")]
        for folder in folders:
            folder.mkdir()

        def save(number: int) -> None:
            payload = [memoryview(byte_view(tensor)) for tensor in state.tensors.values()]
            for folder, buffers in zip(folders, (payload, [bytes(4096)], [bytes(4096)])):
                name, new = folder / str(number), folder / f"{number}.new"
                fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                os.writev(fd, buffers)
                os.fdatasync(fd)
                os.close(fd)
                os.rename(new, name)
                sync_path(folder)

        return save
