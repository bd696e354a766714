"""Cairn's guarantees under dcp: no pickle by default, atomic checkpoints, damage is detected."""

from __future__ import annotations

import os
import pickle
import signal
from fractions import Fraction

import cairn
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn_testing import assert_same, random_tensor, run_python
from ranks import run_on_ranks
from storages import CAIRN, errors_of, failing, loaded
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner

STATE = {
    "model": {"w": torch.arange(300.0), "b": torch.ones(2, 3)},
    "optim": {"state": {"0": {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]},
    "betas": (0.9, 0.99),
    "text": "läuft",
    "big": 2**100,
}


# No pickle ----------------------------------------------------------------------------------------


class Halving(DefaultSavePlanner):
    def transform_object(self, write_item, object):
        made = super().transform_object(write_item, object)
        return made.half() if isinstance(made, torch.Tensor) else made


def forbidden(*args, **kwargs):
    raise AssertionError("something is pickled or unpickled")


@pytest.fixture
def no_pickle(monkeypatch):
    for name in ("load", "loads", "Unpickler", "dump", "dumps", "Pickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    monkeypatch.setattr(torch, "save", forbidden)


def test_pickle_is_needed_neither_to_save_nor_to_load(path, no_pickle):
    CAIRN.save(STATE, path)
    assert_same(loaded(path), STATE)
    target = {"model": {"w": torch.zeros(300)}, "betas": None, "text": ""}
    CAIRN.load(target, path)
    want = {"model": {"w": STATE["model"]["w"]}, "betas": (0.9, 0.99), "text": "läuft"}
    assert_same(target, want)


@pytest.mark.parametrize("where", ["counter", "optim.inner.counter"])
def test_objects_are_refused_by_name(path, where):
    state: dict = {"fine": 1}
    inner = state
    for key in where.split(".")[:-1]:
        inner = inner.setdefault(key, {})
    inner[where.split(".")[-1]] = Fraction(1, 3)
    for planner in (None, Halving()):
        error = errors_of(CAIRN.save, state, path, planner=planner)[0]
        assert isinstance(error, cairn.Invalid) and error.key == where
        assert where in str(error) and "allow_pickle" in str(error)
    with pytest.raises(cairn.NotFound), cairn.open(path) as store:
        store.read()


@pytest.mark.parametrize("planner_type", [DefaultSavePlanner, Halving])
def test_objects_are_pickled_if_both_sides_allow_it(path, planner_type):
    state = {"counter": Fraction(1, 3), "n": 5, "t": torch.ones(3)}
    writer = CairnWriter(path, allow_pickle=True)
    dcp.save(state, storage_writer=writer, planner=planner_type())

    blank = {"counter": None, "n": 0, "t": torch.zeros(3)}
    error = errors_of(dcp.load, blank, storage_reader=CairnReader(path))[0]
    assert isinstance(error, cairn.Invalid) and "counter" in str(error)
    assert "allow_pickle" in str(error)
    if planner_type is DefaultSavePlanner:  # what needs none is loaded without
        assert CAIRN.load({"n": 0}, path) == {"n": 5}

    dcp.load(blank, storage_reader=CairnReader(path, allow_pickle=True))
    assert_same(blank, state)


def test_the_native_api_reads_objects_that_dcp_pickled(path):
    dcp.save({"counter": Fraction(1, 2)}, storage_writer=CairnWriter(path, allow_pickle=True))
    with cairn.open(path) as store:
        with pytest.raises(cairn.Invalid, match="counter"):
            store.read()
        assert store.read(allow_pickle=True) == {"counter": Fraction(1, 2)}


def test_dcp_loads_objects_that_the_native_api_pickled(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"counter": Fraction(1, 2)}, allow_pickle=True)
    error = errors_of(loaded, path)[0]
    assert isinstance(error, cairn.Invalid) and "counter" in str(error)
    assert loaded(path, allow_pickle=True) == {"counter": Fraction(1, 2)}


def test_metadata_of_a_planner_that_need_pickle_are_refused(path):
    class Odd(DefaultSavePlanner):
        def create_global_plan(self, all_plans):
            plans, metadata = super().create_global_plan(all_plans)
            metadata.planner_data = {"x": object()}
            return plans, metadata

    CAIRN.save({"n": 1}, path)
    error = errors_of(CAIRN.save, {"n": 2}, path, planner=Odd())[0]
    assert isinstance(error, cairn.Invalid) and "planner_data" in str(error)
    assert loaded(path) == {"n": 1}


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"a": (1, "b", [None, 2.5, {"c": ()}]), 5: {"tuple": 1}, "dict": [], (1, 2): True},
        [("x",), {"dict": ({},)}],
        {"ä\udc80": float("inf")},
    ],
    ids=repr,
)
def test_metadata_of_a_planner_come_back_equal(path, data):
    class Own(DefaultSavePlanner):
        def create_global_plan(self, all_plans):
            plans, metadata = super().create_global_plan(all_plans)
            metadata.planner_data = data
            metadata.storage_data = data
            return plans, metadata

    saved = CAIRN.save({"n": 1}, path, planner=Own())
    read = CairnReader(path).read_metadata()
    assert_same(read.planner_data, data)
    assert_same(read.storage_data, saved.storage_data)
    assert CAIRN.load({"n": 0}, path) == {"n": 1}


# Damage -------------------------------------------------------------------------------------------


def test_no_damaged_byte_gives_other_contents(path):
    """Damage to records, metadata and index is detected, or the bytes are not needed."""
    state = {"t": torch.ones(3), "n": 1, "text": "some"}
    CAIRN.save(state, path)
    errors = 0
    for file in sorted(path.rglob("*")):
        if not file.is_file() or file.name.startswith("OPTIONS"):
            continue
        whole = file.read_bytes()
        for at in range(0, len(whole), 89):
            file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
            try:
                got = loaded(path)
            except CheckpointException as error:
                errors += 1
                assert str(path) in str(error), f"{file}, byte {at}"
            else:
                assert_same(got, state, f"{file}, byte {at}")
        file.write_bytes(whole)
    assert errors > 5


# Interrupted saves --------------------------------------------------------------------------------


def dying(default: type, method: str, when: str) -> type:
    """A class that kills its process before or after a method."""

    def die(self, *args, **options):
        if when == "after":
            getattr(default, method)(self, *args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    return type("Dying", (default,), {method: die})


def state_on(rank: int, step: int) -> dict:
    return {f"t{rank}": torch.full((3, 7), float(step)), "step": step}


def save_and_die(rank: int, path, when: str, method: str, dying_rank: int) -> str:
    writer_type, planner_type = CairnWriter, DefaultSavePlanner
    if rank == dying_rank and method == "resolve_data":  # when it has begun to write
        planner_type = dying(DefaultSavePlanner, method, when)
    elif rank == dying_rank:
        writer_type = dying(CairnWriter, method, when)
    try:
        dcp.save(state_on(rank, 2), storage_writer=writer_type(path), planner=planner_type())
    except Exception as error:
        return type(error).__name__
    return "saved"


def save_step(rank: int, path, step: int) -> None:
    CAIRN.save(state_on(rank, step), path)


@pytest.mark.parametrize(
    "when, method, rank",
    [
        ("before", "finish", 0),
        ("after", "write_data", 0),
        ("before", "resolve_data", 2),
        ("after", "write_data", 3),
        ("before", "write_data", 1),
    ],
)
def test_a_killed_rank_leaves_the_old_checkpoint_whole(path, when, method, rank):
    run_on_ranks(save_step, path, 1)
    outcomes = run_on_ranks(save_and_die, path, when, method, rank, may_die=(rank,))
    assert outcomes[rank] == -signal.SIGKILL
    assert "saved" not in outcomes
    want = {"step": 1} | {f"t{rank}": torch.full((3, 7), 1.0) for rank in range(4)}
    got = loaded(path)
    assert_same({key: got[key] for key in want}, want)

    run_on_ranks(save_step, path, 3)
    assert loaded(path)["step"] == 3
    with cairn.open(path, mode="a") as store:
        assert store.steps() == [0]


class FailingLate(DefaultSavePlanner):
    def resolve_data(self, write_item):
        if write_item.index.fqn == "t9":
            raise OSError("asked to fail")
        return super().resolve_data(write_item)


def test_a_planner_that_fails_leaves_the_old_checkpoint_whole(path):
    old = {f"t{i}": random_tensor(torch.float32, 1000, seed=i) for i in range(10)}
    new = {key: tensor + 1 for key, tensor in old.items()}
    CAIRN.save(old, path)
    # In several portions, of which some are on the disk when it fails.
    writer = CairnWriter(path, per_thread_copy_ahead=1)
    errors_of(dcp.save, new, storage_writer=writer, planner=FailingLate())
    assert_same(loaded(path), old)
    CAIRN.save(new, path)
    assert_same(loaded(path), new)


@pytest.fixture
def failed(path) -> CairnWriter:
    """A writer that keeps its part, because dcp does not report the failure to it."""
    writer = CairnWriter(path)
    planner = failing(DefaultSavePlanner, "finish_plan")()
    errors_of(dcp.save, {"n": 1}, storage_writer=writer, planner=planner)
    return writer


def test_after_a_failed_save_the_native_api_may_write(path, failed):
    with cairn.open(path, mode="a") as store:
        assert store.steps() == []


def test_after_a_failed_save_other_processes_may_write_once_the_writer_is_closed(path, failed):
    save = "import cairn, sys; cairn.open(sys.argv[1], mode='a').save(1, {'v': 1})"
    refused = run_python(save, path, check=False)
    assert refused.returncode != 0
    assert "Conflict" in refused.stderr
    failed.close()
    run_python(save, path)
