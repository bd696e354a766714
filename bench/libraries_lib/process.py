"""A worker as this process sees it: commands, answers, and an end by SIGKILL."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WORKER = Path(__file__).resolve().parent / "worker.py"
DEADLINE_S = 600.0


class Died(Exception):
    """The worker's process has ended, or has not answered in time."""


class Libraries:
    """The process that has imported the libraries, and forks workers."""

    def __init__(self, contenders: list[str], log: Path) -> None:
        with open(log, "ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, str(WORKER), *contenders],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, bufsize=0,
            )  # fmt: skip
        self._rest = b""

    def __enter__(self) -> Libraries:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def worker(self, contender: str, folder: Path, layers: int) -> WorkerProcess:
        """A new process. It must have ended before the next one starts."""
        self.write({"contender": contender, "folder": str(folder), "layers": layers})
        return WorkerProcess(self, self.read_answer("pid")["pid"])

    def write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    def read_answer(self, field: str = "") -> dict[str, Any]:
        """The next answer, or the next one with this field. Raises Died."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                line = self.read_line(end)
            except TimeoutError as error:
                raise Died(f"no answer in {DEADLINE_S:g} s") from error
            if line.startswith("ANSWER "):
                found = json.loads(line.removeprefix("ANSWER "))
                if field in found or not field:
                    return found

    def read_line(self, end: float) -> str:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                raise Died(f"the process ended with status {self._process.wait()}")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")


class WorkerProcess:
    """One worker. Leaving the block ends it."""

    def __init__(self, library: Libraries, pid: int) -> None:
        self._library = library
        self._pid = pid
        self._has_ended = False

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def kill(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._library.read_answer("ended")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Returns the answer, which may be an `error` of the library. Raises Died."""
        self._library.write({"do": do, **arguments})
        found = self._library.read_answer()
        if "ended" in found:
            self._has_ended = True
            raise Died("the process has ended")
        return found

    def kill_during(self, seconds: float, do: str, **arguments: Any) -> bool:
        """Kills the worker so long after it has begun; returns whether it had not finished."""
        self._library.write({"do": do, **arguments})
        while self._library.read_line(time.monotonic() + DEADLINE_S) != "BEGIN":
            pass
        end = time.monotonic() + seconds
        try:
            while not self._library.read_line(end).startswith("ANSWER "):
                pass
            return False
        except TimeoutError:
            return True
        finally:
            self.kill()
