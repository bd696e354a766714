"""From which step a step continued, and its run: what a save takes as the parent of its step."""

from __future__ import annotations

import pickle
import uuid

import pytest
import torch
from ranks import with_ranks

import cairn
from cairn import SaveTuning
from cairn.torch import Saver
from cairn.trainers._pointers import Pointer, choose_step, write_pointer

RUN = uuid.UUID(int=7).hex


def make_state(value: float = 0.0) -> dict:
    return {"w": torch.full((5000,), float(value)), "n": int(value)}


def save(store: cairn.Store, step: int, **tuning) -> cairn.StepInfo:
    store.save(step, make_state(step), overwrite=True, tuning=SaveTuning(**tuning))
    return store.step_info(step)


def assert_child(step: cairn.StepInfo, parent: cairn.StepInfo) -> None:
    assert (step.parent.step, step.parent.attempt) == (parent.step, parent.attempt)
    assert step.run == parent.run


def test_a_step_continues_from_what_was_saved_or_loaded_last(path):
    with cairn.open(path, mode="a") as store:
        first, second, third = (save(store, step) for step in (1, 2, 3))
    assert first.parent is None and len(bytes.fromhex(first.run)) == 16
    assert_child(second, first)
    assert_child(third, second)
    assert pickle.loads(pickle.dumps(third)) == third

    with cairn.open(path, mode="a") as store:
        # none of these loads a step
        store.step_info(1), store.keys(1), store.diff(1, 2), store.damaged_keys(1)
        assert_child(save(store, 4), third)
        store.load(make_state(), step=1)
        fork = save(store, 10)
        assert_child(fork, first)
        assert_child(save(store, 11), fork)
        store.read(step=2)
        assert_child(save(store, 12), second)
        store.read("n", step=3)  # no tensor, so nothing is read
        assert_child(save(store, 13), third)
        state = store.read(step=1)
        store.pull(state, since=1, step=2)
        assert_child(save(store, 14), second)


def test_an_asynchronous_save_continues_from_what_was_loaded_before_it_was_called(store):
    first, second = save(store, 1), save(store, 2)
    for step in range(3, 20):
        state = make_state(step)
        handle = store.save_async(step, state)
        store.load(state, step=1)  # often before the save begins to write
        handle.result()
        assert_child(store.step_info(step), first if step > 3 else second)


def test_the_caller_names_the_parent_and_the_run(store):
    first, second = save(store, 1), save(store, 2)
    fork = save(store, 3, parent=1, run=RUN)
    assert (fork.parent, fork.run) == (second.parent, RUN)
    assert_child(save(store, 4), fork)
    store.save_async(5, make_state(), tuning=SaveTuning(parent=1)).result()
    assert_child(store.step_info(5), first)
    with store.writer(6, tuning=SaveTuning(parent=2, run=RUN)) as writer:
        writer.add("w", torch.ones(3))
    assert (store.step_info(6).parent.step, store.step_info(6).run) == (2, RUN)
    with pytest.raises(cairn.NotFound, match="parent"):
        save(store, 7, parent=9)
    for run in ("7", RUN + "7", b"7" * 16, 7):
        with pytest.raises(cairn.Invalid, match="32 hex digits"):
            save(store, 7, run=run)
    assert store.steps()[-1] == 6


def test_a_load_from_a_fallback_store_counts(path, tmp_path):
    mirror = tmp_path / "mirror"
    with cairn.open(path, mode="a") as store:
        first = save(store, 1)
        store.fork(1, to=mirror)
        save(store, 2)
        store.delete(1)
    with cairn.open(path, mode="a", fallback=[mirror]) as store:
        store.load(make_state(), step=1)
        assert_child(save(store, 3), first)
        store.read(step=1)
        assert_child(save(store, 4), first)


@with_ranks(2)
def test_the_parent_of_several_ranks_is_that_of_rank_0(rank, path):
    with cairn.open(path, mode="a") as store:
        first, second = save(store, 1), save(store, 2)
        assert_child(second, first)
        store.load(make_state(), step=1)
        assert_child(save(store, 3), first)
        assert_child(save(store, 4, parent=2 if rank == 0 else None), second)
        store.save_async(5, make_state()).result()
        assert_child(store.step_info(5), store.step_info(4))


def go_back(path) -> None:
    """Steps 10 to 50, of which 40 is saved again by a run that has gone back to 30."""
    with cairn.open(path, mode="a") as store:
        for step in (10, 20, 30, 40, 50):
            save(store, step)
    with cairn.open(path, mode="a") as store, Saver(store, every=5, overwrite=True) as saver:
        assert saver.resume(make_state(), step=30) == 30
        saver.step(40, make_state(41))


def test_the_latest_step_is_on_the_line_of_the_latest_save(path):
    go_back(path)
    with cairn.open(path, mode="a") as store, Saver(store, every=5) as saver:
        state = make_state()
        assert store.latest() == 40 == store.load(state).step
        assert state["n"] == 41 == store.read("n")["n"]
        with pytest.warns(RuntimeWarning, match="step 40, .* and not step 50, from which"):
            assert saver.resume(state) == 40
        assert store.wait(after=50, timeout=0) == 40  # to a server with the former line
        assert store.wait(after=40, timeout=0) is None
        assert store.wait(after=60, timeout=0) is None
        assert store.check_state(make_state(41)).next_bytes == 0
        saver.step(45, make_state(45))
    with cairn.open(path) as reader:
        assert reader.latest() == 45
        assert (reader.step_info(45).parent.step, reader.steps()[-1]) == (40, 50)


def test_a_checkpoint_of_a_trainer_without_a_number_follows_the_latest_step(path, tmp_path):
    go_back(path)
    with cairn.open(path, mode="a") as store:

        def choose(name: str) -> int:
            return choose_step(store, tmp_path / name, "*.json")

        assert choose("final") == 41
        save(store, 41)
        assert (choose("final"), choose("global_step50")) == (42, 51)  # perhaps of another run
        write_pointer(tmp_path / "epoch50" / "cairn.json", Pointer(store.address, 50))
        assert (choose("global_step50"), choose("epoch60")) == (51, 60)


def test_retention_follows_the_line_of_the_latest_save(path):
    go_back(path)
    with cairn.open(path, mode="a") as store:
        assert store.prune(keep_last=2).steps == (10, 20)
        assert store.steps() == [30, 40, 50]  # 50 is of a line that the run has left
        store.set_policy(keep_last=1)
        save(store, 60)
        assert store.steps() == [60]


def test_a_load_by_a_reader_counts_for_the_store_that_is_opened_after_it(path):
    with cairn.open(path, mode="a") as store:
        for step in (10, 20, 30):
            save(store, step)
    with cairn.open(path) as reader:
        reader.load(make_state(), step=10)
    with cairn.open(path, mode="a") as store:
        save(store, 15)
        assert store.step_info(15).parent.step == 10
        assert store.latest() == 15
    with cairn.open(path, mode="a") as store:
        save(store, 16)
        assert store.step_info(16).parent.step == 15


def test_an_evaluation_of_an_old_step_by_a_reader_does_not_count(path):
    def evaluate(step: int) -> None:
        with cairn.open(path) as reader:
            reader.load(make_state(), step=step)

    for step in (10, 20, 30, 40):  # a writer per save
        with cairn.open(path, mode="a") as store:
            save(store, step)
    evaluate(10)
    with cairn.open(path, mode="a") as store:
        assert save(store, 50).parent.step == 40
    with cairn.open(path, mode="a") as store:
        assert save(store, 45).parent.step == 50  # the load of step 10 was before another save
        store.delete(45)
        store.load(make_state(), step=20)
        evaluate(10)
        assert save(store, 25).parent.step == 20  # the store itself has loaded


def test_a_load_through_dcp_counts_for_the_save_after_it(path):
    import torch.distributed.checkpoint as dcp

    from cairn.dcp import CairnReader, CairnWriter

    state = {"w": torch.zeros(100)}
    for step in (10, 20, 30):
        dcp.save(state, storage_writer=CairnWriter(path, step=step), no_dist=True)
    dcp.load(state, storage_reader=CairnReader(path, step=10), no_dist=True)
    dcp.save(state, storage_writer=CairnWriter(path, step=15), no_dist=True)
    with cairn.open(path) as store:
        assert (store.step_info(15).parent.step, store.latest()) == (10, 15)


@with_ranks(2)
def test_ranks_resume_the_line_of_the_latest_save(rank, path):
    with cairn.open(path, mode="a") as store:
        for step in (10, 20, 30):
            save(store, step)
        store.load(make_state(), step=10)
        save(store, 15)
        with Saver(store, every=5) as saver, pytest.warns(RuntimeWarning, match="step 30"):
            assert saver.resume(make_state()) == store.latest() == 15
        assert store.load(make_state()).step == 15
