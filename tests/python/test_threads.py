"""Several threads use Cairn at the same time, with and without the interpreter lock.

Without it (a free-threaded Python), only Cairn's own locks order what the threads do.
CAIRN_THREAD_ROUNDS (3) is how often each test does its work:

    CAIRN_THREAD_ROUNDS=50 .venv/bin/python -m pytest tests/python/test_threads.py

Needs no torch, so that tests/install runs it with any Python: `pytest --noconftest`.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import sysconfig
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cairn
import numpy as np
import pytest
from cairn import _cairn
from cairn.errors import Conflict, Invalid

THREADS = 6
ROUNDS = int(os.environ.get("CAIRN_THREAD_ROUNDS", "3"))


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Begins all calls at once, each on its own thread. Returns their results, and raises the first
    of their errors."""
    begin = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        begin.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [ended.result() for ended in [pool.submit(run, call) for call in calls]]


def on_threads(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """What `work(number)` returns on each thread."""
    return together(*(lambda number=number: work(number) for number in range(count)))


def state_of(number: int) -> dict[str, Any]:
    """A state in which every element and value is the number."""
    layers = {f"layers.{i}": np.full(50 + i, number, np.int64) for i in range(20)}
    large = np.full(200_000, number, np.int32)
    texts = [number, {"text": str(number)}]
    return {"model": layers, "large": large, "step": number, "list": texts}


def assert_is(state: Any, number: int) -> None:
    """Asserts that a state is `state_of(number)`."""
    want = state_of(number)
    assert list(state) == list(want)
    assert (state["step"], state["list"]) == (want["step"], want["list"])
    for key, array in [*want["model"].items(), ("large", want["large"])]:
        found = state["large"] if key == "large" else state["model"][key]
        assert found.dtype == array.dtype and np.array_equal(found, array), key


@pytest.fixture(params=range(ROUNDS))
def store(tmp_path: Path) -> Iterator[cairn.Store]:
    with cairn.open(tmp_path / "store", mode="a", grace=0) as opened:
        yield opened


def test_an_import_does_not_bring_the_lock_back():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has the interpreter lock")
    code = "import sys, cairn; sys.exit(sys._is_gil_enabled())"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("turn", range(ROUNDS))
def test_each_thread_saves_to_a_store_of_its_own(tmp_path, turn):
    def work(number: int) -> None:
        place = tmp_path / str(number)
        for step in range(3):
            with cairn.open(place, mode="a") as store:
                store.save(step, state_of(10 * number + step))
            assert_is(cairn.open(place).read(step=step), 10 * number + step)
        target = state_of(-1)
        with cairn.open(place) as store:
            store.load(target, step=1)
        assert_is(target, 10 * number + 1)

    on_threads(work)


def test_all_threads_save_to_one_store(store):
    def work(number: int) -> None:
        for step in (number, number + 100):
            if number % 2:
                assert store.save(step, state_of(step)).step == step
            else:
                assert store.save_async(step, state_of(step)).result().step == step
        store.tag(number, f"of-{number}")

    on_threads(work)
    assert store.steps() == [*range(THREADS), *range(100, 100 + THREADS)]
    assert store.tags() == {f"of-{number}": number for number in range(THREADS)}
    for step in store.steps():
        assert_is(store.read(step=step), step)


def test_threads_read_one_store_while_another_saves_and_deletes(store):
    for step in range(4):
        store.save(step, state_of(step))

    def write() -> None:
        for step in range(10, 16):
            store.save(step, state_of(step))
            store.delete(step)

    def read(number: int) -> None:
        for step in range(4):
            assert_is(store.read(step=step), step)
            target = state_of(-1)
            store.load(target, step=step)
            assert_is(target, step)
            assert_is(store.read(step=step, mmap=True, verify="lazy"), step)
            infos = store.keys(step)
            assert infos["large"].shape == (200_000,) and len(infos) == 24
            part = store.read_slice("large", [(number, number + 5)], step)
            assert part.tolist() == [step] * 5
            assert {int(array[0]) for _, array in store.stream(step)} == {step}
            assert set(range(4)) <= set(store.steps())
            assert store.step_info(step).step == step

    together(write, *(lambda number=number: read(number) for number in range(THREADS)))
    assert store.steps() == [0, 1, 2, 3]
    assert store.wait_verified()


def test_a_state_may_change_its_containers_during_a_save(store):
    """A save sees each container as it was at some moment."""
    arrays = [np.full(100, i) for i in range(50)]
    state: dict[str, Any] = {
        "dict": dict(enumerate(arrays)),
        "list": list(arrays),
        "ordered": OrderedDict(),
    }
    has_ended = threading.Event()

    def change() -> None:
        number = 50
        while not has_ended.is_set():
            fresh = np.full(100, number)
            state["dict"][number] = fresh
            del state["dict"][next(iter(state["dict"]))]
            state["list"].append(fresh)
            del state["list"][0]
            state["ordered"] = OrderedDict(list(state["dict"].items())[:5])
            number += 1

    def save() -> None:
        try:
            for step in range(10):
                store.save(step, state)
        finally:
            has_ended.set()

    together(change, save)
    for step in range(10):
        found = store.read(step=step)
        for key, array in [*found["dict"].items(), *found["ordered"].items()]:
            assert array.tolist() == [key] * 100
        numbers = [int(array[0]) for array in found["list"]]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert all(array.tolist() == [n] * 100 for n, array in zip(numbers, found["list"]))


def test_observers_that_threads_add_at_once_all_get_every_event(store):
    events: list[list[int]] = [[] for _ in range(THREADS)]
    on_threads(lambda number: store.observe(lambda event: events[number].append(event.step)))

    def work(number: int) -> None:
        store.save(number, state_of(number))
        store.save_async(number + 100, state_of(number)).result()

    on_threads(work)
    store.close()
    saved = [*range(THREADS), *range(100, 100 + THREADS)]
    assert [sorted(seen) for seen in events] == [saved] * THREADS


def test_a_store_is_closed_while_threads_use_it(store):
    store.save(1, state_of(1))
    reading = threading.Barrier(THREADS + 2)

    def read(number: int) -> None:
        reading.wait()
        with pytest.raises(Invalid, match="closed"):
            while True:
                if number % 2:
                    assert_is(store.read(step=1), 1)
                else:
                    target = state_of(-1)
                    store.load(target, step=1)
                    assert_is(target, 1)

    def save() -> None:
        reading.wait()
        with pytest.raises(Invalid, match="closed"):
            for step in itertools.count(2):
                store.save_async(step, state_of(step))

    def close() -> None:
        reading.wait()
        store.close()
        store.close()

    together(*(lambda number=number: read(number) for number in range(THREADS)), save, close)
    with cairn.open(store.address) as again:
        for step in again.steps():
            assert_is(again.read(step=step), step)


def test_one_of_several_threads_gets_the_writer(store):
    is_open = threading.Barrier(THREADS)

    def write(number: int) -> int | None:
        try:
            with store.writer(number) as writer:
                is_open.wait()
                writer.add("number", number)
                writer.add("array", np.full(100, number))
        except Invalid as error:
            assert "a writer of this store is open" in str(error)
            is_open.wait()
            return None
        return number

    (number,) = [one for one in on_threads(write) if one is not None]
    assert store.steps() == [number]
    assert store.read()["array"].tolist() == [number] * 100
    with store.writer(100) as writer:
        writer.add("number", 100)
    assert store.read() == {"number": 100}


def test_a_writer_takes_leaves_from_one_thread_at_a_time(store):
    refused = []

    def add(number: int) -> None:
        for i in range(10):
            while True:
                try:
                    writer.add(f"{number}.{i}", np.full(100, number))
                    break
                except Conflict as error:
                    refused.append(error)

    with store.writer(1) as writer:
        on_threads(add)
    found = store.read(flat=True)
    assert sorted(found) == sorted(f"{n}.{i}" for n in range(THREADS) for i in range(10))
    assert all(array.tolist() == [int(fqn[0])] * 100 for fqn, array in found.items())


def test_each_thread_reports_to_its_own_progress_function(store):
    store.save(1, state_of(1))
    _cairn.set_progress_interval(0)  # reports are not left out

    def work(number: int) -> None:
        callers = []

        def follow(done: int, total: int) -> None:
            callers.append(threading.get_ident())

        store.read(step=1, progress=follow)
        store.save(number + 10, state_of(number), progress=follow)
        assert set(callers) == {threading.get_ident()}

    on_threads(work)


def test_many_threads_wait_for_one_save(store):
    handle = store.save_async(1, state_of(1))

    def wait(number: int) -> Any:
        handle.wait_staged()
        return handle.result(), handle.done(), repr(handle)

    report, is_done, text = wait(0)
    assert is_done
    assert on_threads(wait) == [(report, True, text)] * THREADS


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_as_it_was_after_the_calls_of_several_threads(store, is_on):
    was_on = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:

        def work(number: int) -> None:
            for _ in range(200):
                with _cairn.CollectionPause():
                    pass
            store.save(number, {str(i): i for i in range(1000)})
            assert store.read(step=number)["999"] == 999

        on_threads(work)
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if was_on else gc.disable)()


def test_a_pause_of_the_collector_lasts_until_the_last_thread_has_ended_its_own():
    assert gc.isenabled()
    with _cairn.CollectionPause():
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(gc.isenabled).result()
            with _cairn.CollectionPause():
                assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
