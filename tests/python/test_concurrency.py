"""Threads that read through the handle of the writer while it saves, overwrites and deletes."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from cairn_testing import wait_until

import cairn

CHANGES = 30


def state_of(version: int) -> dict:
    """Every leaf has the version, so that a mixture of two versions is noticed."""
    return {
        "large": torch.full((40_000,), version),
        "small": {str(i): torch.full((3,), version) for i in range(10)},
        "version": version,
    }


def version_of(state: dict) -> int:
    found = {state["version"], int(state["large"][0]), int(state["large"].unique().item())}
    found |= {int(value.unique().item()) for value in state["small"].values()}
    assert len(found) == 1, f"a mixture of the versions {found}"
    return found.pop()


def read_latest(store: cairn.Store) -> None:
    version_of(store.read())


def read_each(store: cairn.Store) -> None:
    for step in store.steps():
        version_of(store.read(step=step))


def load(store: cairn.Store) -> None:
    target = state_of(0)
    store.load(target)
    version_of(target)


def read_parts(store: cairn.Store) -> None:
    step = store.steps()[-1]
    assert len(store.keys(step=step)) == 12
    assert len(store.read_slice("large", [(5, 10)], step=step)) == 5
    assert store.read("version", step=step)["version"] >= 1


def compare(store: cairn.Store) -> None:
    steps = store.steps()
    store.diff(steps[0], steps[-1])


@pytest.mark.parametrize("grace", [0, None], ids=["without-grace", "with-grace"])
def test_reads_through_the_writer_are_old_or_new_or_not_found(path, grace):
    errors: list[BaseException] = []
    stop = threading.Event()

    def repeat(store: cairn.Store, work, has_read: threading.Event) -> None:
        try:
            while not stop.is_set():
                try:
                    work(store)
                except cairn.NotFound:
                    continue
                has_read.set()
        except BaseException as error:
            errors.append(error)
        finally:
            has_read.set()

    with cairn.open(path, mode="a", grace=grace) as store, cairn.open(path) as reader:
        store.save(1, state_of(1))
        reads = [(handle, work, threading.Event())
                 for work in (read_latest, read_each, load, read_parts, compare)
                 for handle in (store, reader)]
        threads = [threading.Thread(target=repeat, args=read) for read in reads]
        for thread in threads:
            thread.start()
        for version in range(2, 2 + CHANGES):
            # Each change begins while all threads read, one of which has just begun again.
            has_read = reads[version % len(reads)][-1]
            has_read.clear()
            if not has_read.wait(60) or errors:
                break
            if version % 3 == 0:
                store.save(3, state_of(version), overwrite=True)
                store.delete(3)
            else:
                store.save(version % 3, state_of(version), overwrite=True,
                           incremental=version % 2 == 0)
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    assert version == 1 + CHANGES, "a thread has read nothing for 60 s"


def is_waiting(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident)
    return frame is not None and frame.f_code.co_name == "_await_change"


def test_a_store_is_closed_although_many_threads_wait_for_steps(path):
    cairn.open(path, mode="a").close()
    store = cairn.open(path)
    errors = []

    def follow():
        try:
            while True:
                store.wait(timeout=60)
        except cairn.Invalid as error:
            errors.append(str(error))

    threads = [threading.Thread(target=follow) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(map(is_waiting, threads)))
    store.close()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 8 and all("closed" in error for error in errors)
