"""Observers in multi-rank stores, whose ranks are real processes, and of a store in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ranks import run_on_ranks
from s3_faults import faults  # noqa: F401 - a fixture
from s3_server import bucket, folder, server  # noqa: F401 - fixtures
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn
from cairn import metrics

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
    return [_comparable(event) for event in events]


def _comparable(event: cairn.StoreEvent) -> cairn.StoreEvent:
    """Errors are pickled without their attributes otherwise."""
    import dataclasses

    error = None if event.error is None else RuntimeError(type(event.error).__name__)
    return dataclasses.replace(event, error=error)


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
