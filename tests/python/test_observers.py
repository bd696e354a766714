"""Observers of a store, and the metrics that are made of their events: in one process, on several
ranks, and of a store in a bucket."""

from __future__ import annotations

import dataclasses
import logging
import resource
import signal
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from cairn_testing import run_python, steps_of, wait_until
from ranks import in_new_process, run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn
from cairn import metrics
from cairn._mirror.worker import MirrorWorker


@pytest.fixture
def events(store):
    seen: list[cairn.StoreEvent] = []
    store.observe(seen.append)
    return seen


def tensors() -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(300, 400), "bias": torch.randn(7)}


def test_a_save_is_reported_before_it_returns(store, events, path):
    report = store.save(3, tensors(), tags=["best"], metrics={"loss": 0.5})

    (event,) = events
    assert (event.kind, event.step, event.address) == ("save", 3, str(path))
    assert (event.report, event.error) == (report, None)
    assert (event.info.tags, event.info.metrics) == (("best",), {"loss": 0.5})
    assert event.info == store.step_info(3)
    assert event.stall_seconds <= event.seconds < 60
    assert event.free_bytes > 0
    assert event.health is None


def test_a_background_save_is_reported_once_it_is_durable_and_before_close_returns(path):
    events, threads, durable = [], [], []

    def observe(event: cairn.StoreEvent) -> None:
        threads.append(threading.current_thread())
        with cairn.open(path) as reader:
            durable.append(reader.steps())
        events.append(event)

    with cairn.open(path, mode="a") as store:
        store.observe(observe)
        store.save_async(1, tensors())

    (event,) = events
    assert durable == [[1]]
    assert event.in_background
    assert event.report.step == 1
    assert 0 < event.stall_seconds <= event.seconds
    assert threads != [threading.main_thread()]


def test_failed_calls_are_reported_with_their_errors(store, events):
    store.save(1, tensors())

    with pytest.raises(cairn.Conflict):
        store.save(1, tensors())
    with pytest.raises(cairn.NotFound):
        store.load(tensors(), step=5)

    _, save, load = events
    assert (save.kind, save.step, type(save.error)) == ("save", 1, cairn.Conflict)
    assert (load.kind, load.step, type(load.error)) == ("load", 5, cairn.NotFound)
    assert save.report is save.info is None


@in_new_process
def test_a_background_save_that_fails_later_is_reported_with_its_error(rank, path) -> None:
    events = []
    store = cairn.open(path, mode="a")
    store.observe(events.append)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    with pytest.raises(cairn.Error):
        store.save_async(1, {"weight": torch.randn(4 << 20)}).result()
    store.close()
    (event,) = events
    assert isinstance(event.error, cairn.Error) and event.report is None, event
    assert (event.step, event.in_background) == (1, True), event


def test_health_counts_nan_and_infinities_from_recorded_statistics(store, events):
    state = {**tensors(), "bad": torch.tensor([1.0, float("nan"), float("inf"), float("-inf")])}

    store.save(1, state, tuning=cairn.SaveTuning(statistics=True))

    assert events[0].health == cairn.StepHealth(1, 2, 3, ("bad",))


def test_every_kind_of_call_is_reported_once(store, events):
    state = tensors()
    for step in (1, 2, 3):
        store.save(step, state)
        state["bias"] += 1
    store.merge([1, 2], into=4)
    store.load(state, step=4)
    store.pull(state, since=4, step=3)
    store.delete(4)
    store.prune(keep_last=2)
    store.compact()

    kinds = [event.kind for event in events]
    assert kinds[3:] == ["merge", "load", "pull", "delete", "prune", "compact"]
    assert events[-2].report.steps == (1,)


def test_an_observer_that_raises_breaks_nothing_and_is_logged_once(store, caplog):
    seen = []

    def fail(event: cairn.StoreEvent) -> None:
        raise RuntimeError("the server cannot be reached")

    store.observe(fail)
    store.observe(seen.append)
    with caplog.at_level(logging.ERROR, "cairn"):
        store.save(1, tensors())
        store.save_async(2, tensors()).result()
        store.close()

    assert [event.step for event in seen] == [1, 2]
    assert len(caplog.records) == 1
    assert "the server cannot be reached" in caplog.text


def test_a_copy_to_each_mirror_of_a_chain_is_reported(store, events, tmp_path):
    near, far = str(tmp_path / "near"), str(tmp_path / "far")
    state = tensors()
    store.save(1, state, mirror=[near, far])
    store.save(2, state, mirror=[near, far])
    store.wait_mirrored()

    copies = [event for event in events if event.kind == "mirror"]
    for number, mirror in ((1, near), (2, far)):
        found = [(one.step, one.mirror) for one in copies if one.mirror_number == number]
        assert found == [(1, mirror), (2, mirror)]
    for event in copies:
        assert event.in_background
        assert event.error is event.retries is None
        assert event.report.outcome == "copied"
        assert event.report.attempts == 1
        assert 0 < event.report.seconds <= event.seconds
        assert 0 <= event.report.lag_seconds < 60
        assert event.report.logical_bytes == 4 * (300 * 400 + 7)
    first = copies[0].report
    assert first.copied_bytes > first.logical_bytes
    assert all(one.report.copied_bytes == 0 for one in copies if one.step == 2)


def test_a_copy_is_reported_before_its_handle_returns(store, tmp_path):
    seen = []
    store.observe(lambda event: (time.sleep(0.2), seen.append(event.kind)))

    store.save_async(1, tensors(), mirror=tmp_path / "mirror").mirrored()

    assert "mirror" in seen


def test_steps_that_do_not_reach_a_mirror_are_reported_with_their_errors(
    store, events, unreachable, monkeypatch
):
    copy, may_copy = MirrorWorker._copy, threading.Event()
    monkeypatch.setattr(MirrorWorker, "_copy", lambda *args: may_copy.wait(60) and copy(*args))
    mirror = dataclasses.replace(unreachable, timeout=1.0, max_pending=1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        store.save(1, tensors(), mirror=mirror)
        wait_until(lambda: store.mirror_status()[0].step == 1)
        for step in (2, 3):
            store.save(step, tensors(), mirror=mirror)
        may_copy.set()
        with pytest.raises(cairn.Unavailable):
            store.wait_mirrored()

    failed = {event.step: event for event in events if event.kind == "mirror"}
    assert set(failed) == {1, 2, 3}
    assert all(isinstance(one.error, cairn.Unavailable) for one in failed.values())
    assert all(one.report is None and one.mirror == str(mirror) for one in failed.values())
    assert "more than 1 steps were waiting" in str(failed[2].error)
    assert failed[1].retries > 0
    assert failed[2].retries == 0
    assert metrics.measures(failed[1])["failed"] == 1


@pytest.mark.parametrize("kind", ["save", "mirror"])
def test_an_observer_in_the_background_may_close_the_store(path, tmp_path, kind):
    store = cairn.open(path, mode="a")
    closed = threading.Event()
    store.observe(lambda event: event.kind == kind and (store.close(), closed.set()))

    mirror = tmp_path / "mirror" if kind == "mirror" else None
    store.save_async(1, tensors(), mirror=mirror).result()

    assert closed.wait(60)


@pytest.mark.parametrize("error", ["SystemExit", "KeyboardInterrupt", "MemoryError", "Exit"])
def test_an_observer_that_raises_in_the_background_ends_nothing(path, tmp_path, error):
    source = """
    import sys, threading, cairn
    from cairn import Mirror

    class Exit(BaseException): pass

    def observe(event):
        if threading.current_thread() is not threading.main_thread():
            raise eval(sys.argv[3])(event.kind)

    store = cairn.open(sys.argv[1], mode="a")
    store.observe(observe)
    mirror = Mirror(sys.argv[2])
    for step in (1, 2):
        handle = store.save_async(step, {"v": step}, mirror=mirror)
        handle.mirrored(60)
        store.wait_mirrored(60)
    store.save(3, {"v": 3}, mirror=mirror)
    if sys.argv[4] == "close":
        store.close()
    sys.exit(3)
    """
    for ending in ("close", "leave"):
        store, mirror = path / ending, tmp_path / f"{ending}.mirror"
        result = run_python(source, store, mirror, error, ending, check=False, finalizes=True)

        assert result.returncode == 3, result.stderr
        assert steps_of(mirror) == [1, 2, 3]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_observer_on_the_main_thread_may_end_the_program(store, error):
    def observe(event):
        raise error

    store.observe(observe)
    with pytest.raises(error):
        store.save(1, {"v": 1})
    assert store.steps() == [1]


WORLD_SIZE = 2


def observed(rank: int, path: Path) -> list[cairn.StoreEvent]:
    """The calls that all ranks make, two that fail on all ranks, and one that rank 0 makes
    alone."""
    mesh = init_device_mesh("cpu", (WORLD_SIZE,))
    state = {
        "sharded": distribute_tensor(torch.arange(512.0).reshape(64, 8), mesh, [Shard(0)]),
        "bad": torch.tensor([float("nan"), 1.0]),
    }
    events: list[cairn.StoreEvent] = []
    with cairn.open(path, mode="a", grace=0) as store:
        store.observe(events.append)
        mirror = path.with_name("mirror")
        store.save(1, state, tuning=cairn.SaveTuning(statistics=True), mirror=mirror)
        store.save_async(2, state, mirror=mirror).result()
        store.load(state, read_once=True)
        with pytest.raises(cairn.Conflict):
            store.save(1, state)
        with pytest.raises(cairn.Error):
            store.save(3, {"local": object()} if rank == 1 else state)
        store.wait_mirrored()
        if rank == 0:
            store.merge([1, 2], into=4)
        store.delete(1)
    # Only the kind of an error is compared.
    return [dataclasses.replace(one, error=one.error and type(one.error)) for one in events]


def kinds(events: list[cairn.StoreEvent]) -> list[tuple[str, int | None, bool]]:
    return [(one.kind, one.step, one.error is None) for one in events if one.kind != "mirror"]


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> tuple[Path, list[list[cairn.StoreEvent]]]:
    path = tmp_path_factory.mktemp("ranks") / "store"
    return path, run_on_ranks(observed, path, world_size=WORLD_SIZE)


def test_each_rank_reports_its_calls_and_rank_0_the_copies(job):
    _, (first, second) = job

    calls = [
        ("save", 1, True), ("save", 2, True), ("load", 2, True), ("save", 1, False),
        ("save", 3, False),
    ]
    assert kinds(first) == [*calls, ("merge", 4, True), ("delete", None, True)]
    assert kinds(second) == [*calls, ("delete", None, True)]
    assert [one.step for one in first if one.kind == "mirror"] == [1, 2]
    assert not [one for one in second if one.kind == "mirror"]
    assert all((one.rank, one.world_size) == (0, 2) for one in first)
    assert all((one.rank, one.world_size) == (1, 2) for one in second)


def test_the_record_of_a_step_is_in_all_events_and_its_health_in_that_of_rank_0(job):
    _, (first, second) = job

    assert first[0].info == second[0].info
    assert first[0].info.written_bytes == 64 * 8 * 4 + 2 * 4
    assert first[0].health == cairn.StepHealth(1, 0, 2, ("bad",))
    assert second[0].health is None


def test_measures_of_all_ranks_count_nothing_twice(job):
    _, ranks = job
    saves = [metrics.measures(events[0]) for events in ranks]
    deletes = [metrics.measures(event) for events in ranks for event in events
               if event.kind == "delete"]

    total = 64 * 8 * 4 + 2 * 4
    assert saves[0]["written_bytes"] == total
    assert "written_bytes" not in saves[1]
    assert sum(one["rank_written_bytes"] for one in saves) == total
    assert [one.get("steps") for one in deletes] == [1, None]
    # The event of a copy to the mirror may come between those of the saves.
    reuse = [metrics.measures(one).get("reuse") for one in ranks[0] if one.kind == "save"]
    assert reuse[:2] == [0, 1]
    assert ["freed_bytes" in one for one in deletes] == [True, False]


def test_requests_that_are_sent_again_are_counted(bucket, faults):
    """Between the store and a real server, some responses are 503."""
    events = []
    tensors = {"weight": torch.randn(1 << 20)}
    with cairn.open(faults.address(bucket), mode="a") as store:
        store.observe(events.append)
        store.save(1, tensors)
        faults.refuse(3)
        store.save(2, {"weight": tensors["weight"] + 1})
        faults.refuse(2)
        store.load(tensors)

    assert faults.refused == 5
    assert [(one.kind, one.retries) for one in events] == [("save", 0), ("save", 3), ("load", 2)]
    assert [metrics.measures(one)["retries"] for one in events] == [0, 3, 2]
