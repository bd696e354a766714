"""The machine's own limits, measured in the same turns as the peers."""

from __future__ import annotations

import ctypes
import json
import mmap
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from compare_lib.peers.base import KV_BENCH, Finish, Peer, Reported, Steps
from compare_lib.states import State, Tensors


class Fio(Peer):
    """The device: the same bytes in one file, past the page cache."""

    name = "fio"
    is_limit = True
    is_direct = True
    block_bytes: ClassVar[int] = 8 << 20
    remarks = ("O_DIRECT, io_uring, 8 requests in flight; the write ends in fsync",)

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
        # It leaves out what does not fill a block.
        return Reported(job["runtime"] / 1000 * nbytes / job["io_bytes"])

    def save(self, state: State) -> Steps:
        yield
        yield self._run(state.nbytes, "write", "--end_fsync=1")

    def load_new(self, state: State) -> Steps:
        yield
        yield self._run(state.nbytes, "read")

    def load_existing(self, state: State, targets: Tensors) -> Steps:
        return self.load_new(state)


def _anonymous(nbytes: int) -> tuple[mmap.mmap, int]:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Memcpy(Peer):
    """One thread's copying: into fresh memory for loads, into touched memory for stalls."""

    name = "memcpy 1 thread"
    is_limit = True
    threads: ClassVar[int] = 1
    remarks = ("fresh memory for loads, touched memory for stalls",)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        part = -(-nbytes // self.threads)

        def copy(begin: int) -> None:
            ctypes.memmove(target + begin, source + begin, min(part, nbytes - begin))

        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(copy, range(0, nbytes, part)))

    def load_new(self, state: State) -> Steps:
        source, source_address = _anonymous(state.nbytes)
        ctypes.memset(source_address, 1, state.nbytes)
        yield
        target, target_address = _anonymous(state.nbytes)
        self._copy(target_address, source_address, state.nbytes)
        yield None
        del source, target

    def save_async(self, state: State, keys: list[str]) -> Callable[[], Finish]:
        nbytes = state.bytes_of(keys)
        memory = [_anonymous(nbytes) for _ in range(2)]
        for _, address in memory:
            ctypes.memset(address, 1, nbytes)

        def stall() -> Finish:
            self._copy(memory[0][1], memory[1][1], nbytes)
            return lambda: None

        return stall


class MemcpyTwo(Memcpy):
    name = "memcpy 2 threads"
    threads = 2


class Sum(Peer):
    """Two threads adding up the same bytes: how fast anything can look at all of them."""

    name = "sum 2 threads"
    is_limit = True
    remarks = ("from kv-bench digest",)

    @classmethod
    def missing(cls) -> str | None:
        return None if KV_BENCH.exists() else f"{KV_BENCH} is not built"

    def second_save(self, state: State, keys: list[str]) -> Steps:
        yield
        command = [KV_BENCH, "digest", "--dir", self.directory, "--bytes", str(state.nbytes)]
        done = subprocess.run([*command, "--json"], check=True, capture_output=True, text=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        (row,) = [row for row in rows if row.get("what") == "sum, 2 threads"]
        yield Reported(row["seconds"] * state.nbytes / row["bytes"], row["cpu_seconds"])
