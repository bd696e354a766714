"""Runs a measurement in a forked child process, which shares the memory of the state."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LATE = "not done after"


def _work_and_answer(work: Callable[[], Any], log: Path, answer_end: Connection) -> None:
    with open(log, "ab", buffering=0) as sink:  # libraries print and warn
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        answer: Any = work()
    except BaseException as error:  # any exception: the parent records it
        traceback.print_exc()
        sys.stderr.flush()
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    answer_end.send(answer)


def run_in_child(work: Callable[[], Any], deadline_s: float, log: Path) -> Any:
    """Returns what `work` returns, which can be pickled; {"error": ...} if it raises, dies or is
    late. The child's output is added to `log`."""
    end, answer_end = Pipe(duplex=False)  # both ends are closed by exec
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()  # so that a deadline also ends the processes that the library started
            end.close()
            # Otherwise, the measured call may collect and return what the parent has freed.
            gc.collect()
            gc.freeze()
            ctypes.CDLL(None).malloc_trim(0)
            _work_and_answer(work, log, answer_end)
        finally:
            os._exit(0)  # does not run the parent's handlers or wait for a library's threads
    answer_end.close()
    try:
        if end.poll(deadline_s):
            # Not up to the end of the pipe, which processes of the library may keep open.
            return end.recv()
        return {"error": f"{LATE} {deadline_s:g} s"}
    except (EOFError, OSError):
        pass  # it died; the status is known below
    finally:
        end.close()
        for kill in (os.killpg, os.kill):  # it may not lead its group yet
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        _, status = os.waitpid(pid, 0)
    return {"error": f"its process died, status {status}"}
