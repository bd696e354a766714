"""Python programs in new processes that start in milliseconds.

The processes are forked from a server that has imported torch and cairn; see interpreter_server.py.
Programs that depend on what is not imported yet need `subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from interpreter_client import receive, request

PRELOAD = ["hypothesis", "pytest"]
"""What the server imports for the test modules that `run_on_ranks` imports."""


_starting = threading.Lock()
"""Held while the server starts, so that threads do not start several."""


def server_socket() -> str:
    """Starts the server, once per process. Returns the path of its socket."""
    with _starting:
        return _start_server()


@functools.cache
def _start_server() -> str:
    folder = tempfile.TemporaryDirectory(prefix="interpreters-")
    path = os.path.join(folder.name, "socket")
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("interpreter_server.py")), path, *PRELOAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert server.stdout is not None and server.stdout.readline() == b"ready\n"
    atexit.register(_stop, server, folder)
    return path


def _stop(server: subprocess.Popen, folder: tempfile.TemporaryDirectory) -> None:
    server.stdin.close()
    server.wait()
    folder.cleanup()


class Program:
    """A running program, with the interface of `subprocess.Popen` that the tests use.

    Args:
        args: "-c", a source and its arguments, or a path of a script and its arguments.
        env: the environment; by default that of this process, with its folders of modules.
        finalizes: whether Python ends as usual, after the program's threads and atexit functions;
            otherwise, unless there is an exception, the process exits, half a second earlier.
    """

    def __init__(
        self, args: list[str], env: dict[str, str] | None = None, *, finalizes: bool = False
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        self._error_file = tempfile.TemporaryFile("w+")
        environment = env or {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        reader, writer = os.pipe()
        with open(os.devnull) as nothing:
            descriptors = [nothing.fileno(), writer, self._error_file.fileno()]
            self._connection = request(server_socket(), args, environment, descriptors, finalizes)
        os.close(writer)
        self.pid = receive(self._connection, signed=False)
        self.stdout = os.fdopen(reader)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = receive(self._connection, signed=True)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args[:1], timeout) from None
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        """Returns the exit status, or None while the program is running."""
        try:
            return self.wait(0.001)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float = 1200.0) -> tuple[str, str]:
        """Reads both outputs to their end and waits. Kills the program at the deadline."""
        timer = threading.Timer(timeout, os.kill, (self.pid, signal.SIGKILL))
        timer.start()
        try:
            output = self.stdout.read()
            self.wait()
        finally:
            timer.cancel()
        self.stdout.close()
        with self._error_file as file:
            file.seek(0)
            return output, file.read()
