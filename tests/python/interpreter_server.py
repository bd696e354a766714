"""Runs Python programs in processes that are forked from this one, which has imported torch.

A start of Python with torch takes seconds of CPU time; a fork takes milliseconds. `interpreters.py`
starts this script, with modules to import besides, and connects to its socket, once per program:

1. The client sends the file descriptors of standard input, output and error, and a JSON object with
   the arguments, the environment and the working directory.
2. The server forks, and sends the process id (4 bytes, little-endian).
3. The child runs the program as __main__. It ends as any interpreter does: atexit functions run,
   and an exception is printed and gives exit status 1.
4. The server sends the exit status as subprocess.Popen.returncode has it (4 bytes, signed).

The server exits when its standard input, which the client holds open, reaches its end.
"""

import gc
import importlib
import json
import os
import selectors
import socket
import sys
import types

# What most programs of the tests import, and what torch imports late, at the first optimizer.
import torch
import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp  # noqa: F401

import cairn.dcp
import cairn.state_dict
import cairn.torch  # noqa: F401


def serve(path: str) -> types.CodeType:
    """Serves until the client exits. Returns only in a child: the program that it is to run."""
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


def prepare(request: dict, descriptors: list[int]) -> types.CodeType:
    """Makes this process look as if it had been started with the arguments of the request."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
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
    return compile(source, name, "exec")


if __name__ == "__main__":
    for _name in sys.argv[2:]:
        importlib.import_module(_name)
    # Otherwise the end of each program would collect all objects of torch, which takes a second.
    gc.freeze()
    _code = serve(sys.argv[1])
    for _name in [name for name in globals() if not name.startswith("_")]:
        del globals()[_name]
    del _name
    exec(globals().pop("_code"))
