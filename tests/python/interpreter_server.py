"""Runs Python programs in processes that are forked from this one, which has imported torch.

A start of Python with torch takes seconds of CPU time; a fork takes milliseconds. `interpreters.py`
starts this script, with modules to import besides, and connects to its socket, once per program:

1. The client sends the file descriptors of standard input, output and error, and a JSON object with
   the arguments, the environment, the working directory and the umask.
2. The server forks, and sends the process id (4 bytes, little-endian).
3. The child runs the program as __main__. At the end its threads are awaited, its atexit functions
   run, and the process exits. Python itself would free all objects of torch, which takes half a
   second; it does so only after an exception, and if the request asks for it ("finalizes").
4. The server sends the exit status as subprocess.Popen.returncode has it (4 bytes, signed).

The server exits when its standard input, which the client holds open, reaches its end.
"""

import atexit
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import threading
import types

# What most programs of the tests import, and what torch imports late, at the first optimizer.
import torch
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp  # noqa: F401

import cairn.dcp
import cairn.state_dict
import cairn.torch  # noqa: F401


def serve(path: str) -> tuple[types.CodeType, bool]:
    """Serves until the client exits. Returns only in a child: the program that it is to run, and
    whether Python ends it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj == 0:
                os._exit(0)
            elif key.fileobj is not listener:  # a child has ended
                selector.unregister(key.fileobj)
                report_end(key.fileobj, *key.data)
                continue
            connection, _ = listener.accept()
            header, descriptors, *_ = socket.recv_fds(connection, 4, 3)
            length = int.from_bytes(header, "little")
            request = json.loads(connection.recv(length, socket.MSG_WAITALL))
            pid = os.fork()
            if pid == 0:
                for other in list(selector.get_map().values()):
                    if other.data is not None:
                        os.close(other.fileobj)
                        other.data[1].close()
                selector.close()
                listener.close()
                connection.close()
                return prepare(request, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            connection.sendall(pid.to_bytes(4, "little"))
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, connection))


def report_end(pidfd: int, pid: int, connection: socket.socket) -> None:
    os.close(pidfd)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        connection.sendall(status.to_bytes(4, "little", signed=True))
    except OSError:
        pass  # the client did not wait for this program
    connection.close()


def prepare(request: dict, descriptors: list[int]) -> tuple[types.CodeType, bool]:
    """Makes this process look as if it had been started with the arguments of the request."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    first, *rest = request["args"]
    folders = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    if first == "-c":
        source, name = rest.pop(0), "<string>"
        del globals()["__file__"]
        folders.insert(0, "")
    else:
        with open(first) as file:
            source, name = file.read(), first
        folders.insert(0, os.path.dirname(first))
        globals()["__file__"] = first
    sys.argv = [first, *rest]
    sys.path[0] = folders[0]
    sys.path[1:1] = [folder for folder in folders[1:] if folder and folder not in sys.path]
    return compile(source, name, "exec"), request["finalizes"]


def _run(
    code: types.CodeType, finalizes: bool, atexit=atexit, os=os, sys=sys, threading=threading
) -> None:
    """Runs the program among the globals of this module, of which only this function is left."""
    status = 0
    try:
        exec(code, globals())
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    if finalizes:
        sys.exit(status)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.__stdout__, sys.__stderr__):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    # Otherwise the end of a program would collect all objects of torch, which takes a second.
    gc.freeze()
    _arguments = serve(sys.argv[1])
    for _name in [name for name in globals() if not name.startswith("_")]:
        del globals()[_name]
    del _name
    _run(*globals().pop("_arguments"))
