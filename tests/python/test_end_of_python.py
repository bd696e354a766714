"""Python ends while daemon threads are in calls: the status is that of the program, and no step is
damaged."""

from __future__ import annotations

import re

import pytest
from cairn_testing import run_python

import cairn

# Argument: what the daemon thread does, again and again, until Python ends. The program ends while
# the thread is inside the extension module, and has status 3.
PROGRAM = """
import atexit, linecache, os, sys, threading, time
import numpy as np
import torch
import cairn, cairn.store
from cairn import Mirror

path, name, is_closed = sys.argv[1:]
# Waits for a thread that holds the GIL, and does not ask it to release the GIL in between.
sys.setswitchinterval(1000)

def state_of(step):
    return {"large": np.full(4 << 20, step, np.uint8), "torch": torch.full((1000,), step)}

writer = cairn.open(path, mode="a")
for step in (1, 2):
    writer.save(step, state_of(step))
reader = cairn.open(path)
other = cairn.open(path + ".other", mode="a")
steps = iter(range(3, 10**9))

def new():
    step = next(steps)
    return step, state_of(step)

def save_to_mirror():
    writer.save(*new(), mirror=Mirror(path + ".mirror"))
    writer.wait_mirrored()

def write():
    with writer.writer(next(steps)) as one:
        one.add_all(state_of(1).items())

def read_mapped():
    reader.read(mmap=True, verify="lazy")
    reader.wait_verified()

def copy():
    other.delete(*other.steps())
    cairn.copy_steps(reader, other)

def save_with_dcp():
    import torch.distributed.checkpoint as dcp
    from cairn.dcp import CairnWriter
    state = {name: torch.as_tensor(value) for name, value in state_of(1).items()}
    dcp.save(state, checkpoint_id=path + f".dcp{next(steps)}", storage_writer=CairnWriter())

in_function = threading.Event()

def show(done, total):
    in_function.set()
    time.sleep(0.01)

def load_with_progress():
    from cairn import _cairn
    _cairn.set_progress(show)
    _cairn.report_progress(1, 2)

class Pickled:
    def __reduce__(self):
        in_function.set()
        time.sleep(0.01)
        return (Pickled, ())

pickles = {"pickled": Pickled(), "large": 1}
calls = dict(
    wait=lambda: reader.wait(after=10**9, timeout=60),
    load=lambda: reader.load(state_of(0)),
    read=lambda: reader.read(),
    read_slice=lambda: reader.read_slice("large", [(5, 4 << 20)]),
    diff=lambda: reader.diff(1, 2),
    statistics=lambda: reader.statistics(),
    tag=lambda: writer.tag(1, "one"),
    save=lambda: writer.save(*new()),
    save_and_wait=lambda: writer.save_async(*new()).result(),
    save_and_stage=lambda: writer.save_async(*new()).wait_staged(),
    save_to_mirror=save_to_mirror,
    write=write,
    pull=lambda: reader.pull(state_of(1), since=1, step=2),
    stream=lambda: list(reader.stream()),
    read_mapped=read_mapped,
    copy=copy,
    compact=lambda: writer.compact(max_dead=0.0),
    merge=lambda: writer.merge([1, 2], into=5, overwrite=True),
    open_and_close=lambda: cairn.open(path).close(),
    save_with_dcp=save_with_dcp,
    load_with_progress=load_with_progress,
    save_pickles=lambda: writer.save(next(steps), pickles, allow_pickle=True),
)
threading.excepthook = lambda args: os.write(1, repr(args.exc_value).encode())

def repeat():
    while True:
        calls[name]()

def is_in_extension():
    # While this thread has the GIL, the other one waits for it, or is in a call that released it.
    frame = sys._current_frames()[thread.ident]
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return in_function.is_set() or any(
        word in line for word in ("_cairn.", "native", "part.")
    )

class Late:
    # Deleted when Python clears the modules, when no other thread can get the GIL any more. Until
    # its end, the call of the thread ends.
    def __init__(self, sleep=time.sleep):
        self.sleep = sleep
    def __del__(self):
        self.sleep(0.3)

sys.modules["late"] = Late()
if is_closed == "open":
    # As if the store had been opened by a function that runs at exit after that of cairn.
    atexit.unregister(cairn.store._close_all)
calls[name]() if name not in ("wait", "load_with_progress", "save_pickles") else None
in_function.clear()
thread = threading.Thread(target=repeat, daemon=True)
thread.start()
while not is_in_extension():
    time.sleep(0.001)
sys.exit(3)
"""

CALLS = re.findall(r"^    (\w+)=", PROGRAM, re.MULTILINE)


@pytest.mark.parametrize(
    ("call", "stores"),
    [(call, "open") for call in CALLS]
    + [(call, "closed") for call in ("wait", "load", "save", "save_and_wait", "write")],
)
def test_a_process_ends_with_its_status_while_a_daemon_thread_is_in_a_call(path, call, stores):
    result = run_python(PROGRAM, path, call, stores, check=False, finalizes=True)

    assert result.returncode == 3, result.stderr
    assert "terminate" not in result.stderr and "Fatal" not in result.stderr, result.stderr
    with cairn.open(path) as store:
        assert {1, 2} <= set(store.steps())
        for step in store.steps():
            store.read([key for key in store.keys(step) if key != "pickled"], step=step)
