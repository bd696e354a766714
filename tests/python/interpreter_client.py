#!/usr/bin/env -S python3 -IS
"""Asks a server of interpreters (interpreter_server.py) for a process.

As a program, a `python` that has imported torch already: its arguments are run by the server whose
socket is $CAIRN_TEST_INTERPRETERS. SIGINT and SIGTERM are passed on, and it ends as the process of
the server does. SIGKILL, limits of resources and namespaces concern only this process.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path


def request(
    path: str, args: list[str], env: dict[str, str], descriptors: list[int], finalizes: bool = False
) -> socket.socket:
    """Returns the connection on which the process id and then the exit status arrive."""
    status = Path("/proc/self/status").read_text()  # os.umask changes it for all threads
    umask = int(re.search(r"^Umask:\s*(\d+)", status, re.MULTILINE)[1], 8)
    process = {"args": args, "env": env, "cwd": os.getcwd(), "umask": umask, "finalizes": finalizes}
    data = json.dumps(process).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    socket.send_fds(connection, [len(data).to_bytes(4, "little")], descriptors)
    connection.sendall(data)
    return connection


def receive(connection: socket.socket, *, signed: bool) -> int:
    data = connection.recv(4, socket.MSG_WAITALL)
    assert len(data) == 4, "the server of interpreters has gone"
    return int.from_bytes(data, "little", signed=signed)


def main() -> int:
    path = os.environ["CAIRN_TEST_INTERPRETERS"]
    with request(path, sys.argv[1:], dict(os.environ), [0, 1, 2]) as connection:
        pid = receive(connection, signed=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        status = receive(connection, signed=True)
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main())
