"""Another thread gives a tensor or an array other memory while a save or a load uses it.

Each program runs in its own process, so that a crash is a failure of the test. The change happens
after the memory was found and before it is used, at a point that the program chooses.
"""

from __future__ import annotations

import pytest
from cairn_testing import run_python, steps_of

import cairn

# Arguments: the store, what changes the memory, the call, and the elements of the tensor.
PROGRAM = """
import os, sys, threading
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
import cairn
from cairn._base import devices
from cairn._load import pull as pulls
from cairn._save import save as saves, writer
from cairn.dcp import CairnReader, CairnWriter, _writer

path, change, call, count = *sys.argv[1:4], int(sys.argv[4])
is_numpy = change.startswith("array")
torch.set_num_threads(1)

def value(number):
    if is_numpy:
        owner = np.full(count + 8, number, np.int64)
        return owner[:count] if change == "array_view" else owner
    return torch.full((count,), number)

def swap(t):
    with torch.no_grad():
        if change == "set_":
            t.set_(torch.zeros(3, dtype=t.dtype))
        elif change == "data":
            t.data = torch.zeros(3, dtype=t.dtype)
        elif change == "resize_":
            t.untyped_storage().resize_(0)
        elif change == "grow":
            t.untyped_storage().resize_(16 * count)
        else:
            owner = t if t.base is None else t.base
            try:
                owner.resize(1, refcheck=False)
            except ValueError:
                print("held", flush=True)

state = {"t": value(7)}
if change == "data":
    state["t"] = torch.nn.Parameter(state["t"].double())

def in_between(function):
    def run(*args, **kwargs):
        thread = threading.Thread(target=swap, args=(state["t"],))
        thread.start()
        thread.join()
        return function(*args, **kwargs)
    return run

def after(function):
    def run(*args, **kwargs):
        result = function(*args, **kwargs)
        in_between(lambda: None)()
        return result
    return run

saves.prepare_save = after(saves.prepare_save)
writer.flatten = after(writer.flatten)
_writer.flat_values = after(_writer.flat_values)
# Memory that was freed may be read here, but must not be written.
is_freed = change in ("resize_", "grow")
devices.load = after(devices.load) if is_freed else in_between(devices.load)
pulls._Pull.run = in_between(pulls._Pull.run)

def write(function):
    with cairn.open(path, mode="a") as store:
        function(store)

def stream(store):
    with store.writer(1) as one:
        one.add("t", state["t"])

calls = dict(
    save=lambda: write(lambda store: store.save(1, state)),
    save_async=lambda: write(lambda store: store.save_async(1, state).result()),
    writer=lambda: write(stream),
    dcp_save=lambda: dcp.save(state, storage_writer=CairnWriter(path, step=1)),
    load=lambda: cairn.open(path).load(state, step=8),
    pull=lambda: cairn.open(path).pull(state, since=7, step=8),
    read_slice=lambda: cairn.open(path).read_slice(
        "t", [(0, len(state["t"]))], step=8, out=state["t"]
    ),
    dcp_load=lambda: dcp.load(state, storage_reader=CairnReader(path, step=8)),
)

try:
    if call in ("load", "pull", "read_slice", "dcp_load"):
        # The state contains the step that a pull begins with.
        swapped, change = change, "array"
        plain, state["t"] = state["t"], np.zeros(3)
        with cairn.open(path, mode="a") as store:
            for number in (7, 8):
                saved = plain + (number - 7)
                store.save(number, {"t": saved.detach() if not is_numpy else saved})
        state["t"], change = plain, swapped
    calls[call]()
    print("done", flush=True)
except BaseException as error:  # DCP raises its own, which names the one of Cairn
    print("refused" if "was resized" in str(error) else repr(error))
"""

SAVES = ["save", "save_async", "writer", "dcp_save"]
LOADS = ["load", "pull", "read_slice", "dcp_load"]
LARGE = 6 << 20  # 48 MiB, which malloc returns to the system as soon as they are freed


def run(path, change: str, call: str, count: int) -> list[str]:
    return run_python(PROGRAM, path, change, call, count).stdout.splitlines()


@pytest.mark.parametrize("call", SAVES + LOADS)
@pytest.mark.parametrize("change", ["set_", "data"])
def test_a_call_uses_the_memory_that_a_tensor_had(path, change, call):
    assert run(path, change, call, LARGE) == ["done"]

    if call in SAVES:
        with cairn.open(path) as store:
            read = store.read()["t"]
        assert len(read) == LARGE and (read == 7).all()


@pytest.mark.parametrize("change", ["array", "array_view"])
@pytest.mark.parametrize("call", ["save", "save_async", "writer", "load", "pull", "read_slice"])
def test_an_array_cannot_be_resized_while_its_memory_is_used(path, change, call):
    assert run(path, change, call, LARGE) == ["held", "done"]


@pytest.mark.parametrize("change", ["resize_", "grow"])
@pytest.mark.parametrize("call", SAVES)
def test_a_save_is_refused_if_a_storage_was_resized(path, change, call):
    # Small, because the memory is read after it was freed: nothing can keep it.
    assert run(path, change, call, 100) == ["refused"]

    assert steps_of(path) == []


@pytest.mark.parametrize("call", ["read_slice", "dcp_load"])
def test_a_load_reports_that_a_storage_was_resized(path, call):
    assert run(path, "grow", call, 100) == ["refused"]
