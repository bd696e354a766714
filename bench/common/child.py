"""Runs a measurement in a forked child process, which shares the memory of the state."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

LATE = "not done after"


def _work_and_answer(work: Callable[[], Any], log: Path, answer_fd: int) -> None:
    with open(log, "ab", buffering=0) as sink:  # libraries print and warn
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        answer: Any = work()
    except BaseException as error:  # any exception: the parent records it
        traceback.print_exc()
        sys.stderr.flush()
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    data = json.dumps(answer).encode() + b"\n"
    while data:
        data = data[os.write(answer_fd, data) :]


def _read_until(fd: int, deadline: float) -> bytes | None:
    """Returns the line that is written to the pipe, or a part of it; None at the deadline.

    Waits for the end of the line, because processes of the library may keep the pipe open.
    """
    pieces = [b""]
    while not pieces[-1].endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            return None
        piece = os.read(fd, 1 << 16)
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces)


def run_in_child(work: Callable[[], Any], deadline_s: float, log: Path) -> Any:
    """Returns what `work` returns, which must be JSON; {"error": ...} if it raises, dies or is
    late. The child's output is added to `log`."""
    end, answer_end = os.pipe()  # both ends are closed by exec
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()  # so that a deadline also ends the processes that the library started
            os.close(end)
            # Otherwise, the measured call may collect and return what the parent has freed.
            gc.collect()
            gc.freeze()
            ctypes.CDLL(None).malloc_trim(0)
            _work_and_answer(work, log, answer_end)
        finally:
            os._exit(0)  # does not run the parent's handlers or wait for a library's threads
    os.close(answer_end)
    try:
        data = _read_until(end, time.monotonic() + deadline_s)
    finally:
        os.close(end)
        for kill in (os.killpg, os.kill):  # it may not lead its group yet
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _, status = os.waitpid(pid, 0)
    if data is None:
        return {"error": f"{LATE} {deadline_s:g} s"}
    try:
        return json.loads(data)
    except ValueError:
        return {"error": f"its process died, status {status}"}
