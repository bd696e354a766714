"""Asynchronous saves, threads and signals."""

from __future__ import annotations

import os
import resource
import signal
import threading

import numpy as np
import pytest
import torch
from cairn_testing import run_python, wait_until
from ranks import run_on_ranks

import cairn

MIB = 1 << 20


def test_the_step_is_the_state_at_the_call(store):
    tensor = torch.arange(4 * MIB, dtype=torch.float32)
    before = tensor.clone()
    state = {"t": tensor, "tied": tensor, "row": tensor[10:20], "v": [1]}
    handle = store.save_async(1, state)
    handle.wait_staged()
    tensor.zero_()
    state["v"].append(2)
    report = handle.result()

    assert handle.done()
    assert (report.step, report.logical_bytes) == (1, before.nbytes)
    read = store.read()
    assert torch.equal(read["t"], before) and read["t"] is read["tied"] and read["v"] == [1]
    assert torch.equal(read["row"], before[10:20])


def test_the_result_can_be_asked_again_and_waited_for_with_a_limit(store):
    handle = store.save_async(1, {"t": torch.zeros(1).expand(1 << 29)})
    with pytest.raises(TimeoutError, match="step 1"):
        handle.result(timeout=0.001)
    assert handle.result(timeout=60) == handle.result()
    assert "done" in repr(handle)


def test_a_second_save_waits_for_the_first(store):
    tensor = torch.zeros(8 * MIB)
    handles = []
    for step in range(1, 5):
        tensor.fill_(step)
        handles.append(store.save_async(step, {"t": tensor}))
        handles[-1].wait_staged()
        assert all(handle.done() for handle in handles[:-1])
    store.save(5, {"v": 5})
    assert all(handle.done() for handle in handles)
    assert [handle.result().step for handle in handles] == [1, 2, 3, 4]
    for step in range(1, 5):
        assert torch.equal(store.read(step=step)["t"], torch.full((8 * MIB,), float(step)))


def test_errors_of_the_state_come_at_once(store):
    store.save(1, {"v": 1})
    with pytest.raises(cairn.Conflict):
        store.save_async(1, {"v": 2})
    with pytest.raises(cairn.Invalid):
        store.save_async(2, {"a": {"b": 1}, "a.b": 2})
    with pytest.raises(cairn.Invalid, match="set"):
        store.save_async(2, {"a": {1, 2}})
    store.save_async(2, {"v": 2}).result()


def fail_to_write(rank, path, shown_by) -> None:
    store = cairn.open(path, mode="a")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
    handle = store.save_async(1, {"big": np.ones(4 << 20)})
    if shown_by == "each result":
        for _ in range(2):
            with pytest.raises(cairn.Unavailable):
                handle.result()
        assert handle.done()
        store.close()
    elif shown_by == "close, if nobody has asked":
        with pytest.raises(cairn.Unavailable):
            store.close()
    else:
        wait_until(handle.done)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.RLIM_INFINITY))
        with pytest.warns(RuntimeWarning, match="the save of step 1 failed") as warned:
            del handle
            store.save_async(2, {"v": 2}).result()
        assert len(warned) == 1


@pytest.mark.parametrize(
    "shown_by",
    ["each result", "close, if nobody has asked", "a warning, if the handle was dropped"],
)
def test_errors_of_the_writing_are_shown(path, shown_by):
    run_on_ranks(fail_to_write, path, shown_by, world_size=1, has_group=False)


@pytest.mark.parametrize("ending", ["", "store.close()", "sys.exit(0)", "del store, handle"])
def test_leaving_python_waits_for_a_running_save(path, ending):
    run_python(
        f"""
        import sys, cairn, numpy
        store = cairn.open(sys.argv[1], mode="a")
        handle = store.save_async(1, {{"t": numpy.ones(16 << 20)}})
        {ending}
        """,
        path,
    )
    with cairn.open(path) as store:
        assert store.steps() == [1]
        assert bool((store.read()["t"] == 1).all())


def interrupt_soon() -> None:
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def test_ctrl_c_ends_a_save_and_leaves_the_store_as_it_was(store, path):
    store.save(1, {"v": 1})
    files = sorted(path.rglob("*.seg"))
    # 64 GiB in little memory: far more than can be written before the signal.
    endless = {f"t{i}": torch.zeros(1).expand(1 << 27) for i in range(128)}
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        store.save(2, endless)
    assert store.steps() == [1]
    assert sorted(path.rglob("*.seg")) == files
    store.save(2, {"v": 2})


def test_ctrl_c_ends_a_load(store):
    # The file is sparse in nothing but memory: one chunk, referred to by every step of the read.
    tensor = torch.zeros(256 * MIB)
    store.save(1, {"t": tensor})
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        for _ in range(1000):
            store.load({"t": tensor})


def test_ctrl_c_ends_waiting_but_not_the_save(store):
    handle = store.save_async(1, {"t": torch.ones(1).expand(1 << 29)})
    with pytest.raises(KeyboardInterrupt):
        interrupt_soon()
        while True:
            handle.result()
    assert handle.result().step == 1
