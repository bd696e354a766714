"""Asynchronous saves, threads and signals; host copies of device tensors; processes that fork."""

from __future__ import annotations

import os
import resource
import signal
import threading
import traceback
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, run_python, steps_of, wait_until
from ranks import in_new_process

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
    assert handle.result(timeout=1200) == handle.result()
    assert "done" in repr(handle)


@pytest.mark.parametrize(
    "shown_by",
    ["each result", "close, if nobody has asked", "a warning, if the handle was dropped"],
)
@in_new_process
def test_errors_of_the_writing_are_shown(rank, path, shown_by) -> None:
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
        finalizes=True,
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


def test_a_forked_child_is_told_to_open_again(path):
    # In a separate process, because a fork copies everything that pytest and torch have running.
    result = run_python(
        """
        import os, sys, cairn
        store = cairn.open(sys.argv[1], mode="a")
        store.save(1, {"v": 1})
        handle = store.save_async(2, {"v": 2})
        if os.fork() == 0:
            calls = [store.steps, store.read, store.close, handle.result, lambda: store.save(3, {})]
            for call in calls:
                try:
                    call()
                except cairn.Invalid as error:
                    print("fork" in str(error), flush=True)
            print(repr(handle) != "", cairn.open(sys.argv[1]).steps()[0] == 1, flush=True)
            del store, handle, calls, call
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        handle.result()
        store.save(3, {"v": 3})
        store.close()
        """,
        path,
    )
    assert result.stdout.split() == ["True"] * 7
    assert result.stderr == ""
    assert steps_of(path) == [1, 2, 3]


def many_tensors(step: int) -> dict:
    generator = torch.Generator().manual_seed(step)
    return {
        "large": torch.randn(1_500_000, generator=generator),
        "same": torch.arange(1_000_000),
        "small": [torch.randn(50, generator=generator) for _ in range(20)],
        "step": step,
    }


def save_and_load(path, first: int) -> None:
    with cairn.open(path, mode="a") as store:
        store.save(first, many_tensors(first))
        tuning = cairn.SaveTuning(compress=True)
        store.save(first + 1, many_tensors(first + 1), tuning=tuning)
        tuning = cairn.SaveTuning(deltas=2, statistics=True)
        store.save_async(first + 2, many_tensors(first + 2), tuning=tuning).result()
        store.delete(first)
        store.compact()
        assert_same(store.read(step=first + 1), many_tensors(first + 1))
        target = many_tensors(0)
        store.load(target, step=first + 2)
        assert_same(target, many_tensors(first + 2))


def in_child(work: Callable[..., None], *args: object) -> None:
    pid = os.fork()
    if pid == 0:
        signal.alarm(600)  # a hang is a failure
        try:
            work(*args)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@in_new_process
def test_a_forked_child_that_opens_a_store_saves(rank, path, tmp_path):
    """The threads of the parent, and those of its libraries, do not exist in the child."""
    with cairn.open(path, mode="a") as store:
        store.save(1, many_tensors(1))
        store.save_async(2, many_tensors(2)).result()
        assert_same(store.read(), many_tensors(2))
        in_child(save_and_load, tmp_path / "other", 1)  # while the parent has its store open
        store.save(3, many_tensors(3))
    in_child(save_and_load, path, 10)  # the same store
    in_child(in_child, save_and_load, path, 20)
    with cairn.open(path, mode="a") as store:
        assert store.steps() == [1, 2, 3, 11, 12, 21, 22]
        for step in store.steps():
            assert_same(store.read(step=step), many_tensors(step))
        store.save(30, many_tensors(30))
