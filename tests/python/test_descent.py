"""From which step a step continued, and its run: what a save takes as the parent of its step."""

from __future__ import annotations

import pickle
import uuid

import pytest
import torch
from ranks import with_ranks

import cairn
from cairn import SaveTuning

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


def test_an_asynchronous_save_continues_from_what_was_loaded_before_it_was_called(path):
    with cairn.open(path, mode="a") as store:
        first, second = save(store, 1), save(store, 2)
        for step in range(3, 20):
            state = make_state(step)
            handle = store.save_async(step, state)
            store.load(state, step=1)  # often before the save begins to write
            handle.result()
            assert_child(store.step_info(step), first if step > 3 else second)


def test_edits_and_merges_are_no_parents_of_what_is_saved_after_them(path):
    with cairn.open(path, mode="a") as store:
        first, second = save(store, 1), save(store, 2)
        store.edit(1, into=20, rename={"w": "v"})
        store.fork(2, into=30)
        store.merge([2, 1], into=40)
        for step, parent in ((20, first), (30, second), (40, first)):
            assert_child(store.step_info(step), parent)
        assert_child(save(store, 3), second)
        store.edit(3, into=3, overwrite=True, records={"eval": b"x"})
        assert_child(store.step_info(3), second)
        assert_child(save(store, 4), store.step_info(3))
        store.load({"v": torch.zeros(5000), "n": 0}, step=20)
        assert_child(save(store, 21), store.step_info(20))


def test_the_caller_names_the_parent_and_the_run(path):
    with cairn.open(path, mode="a") as store:
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


def test_a_replaced_step_keeps_its_parent(path):
    with cairn.open(path, mode="a") as store:
        steps = [save(store, step) for step in (1, 2, 3)]
        assert_child(save(store, 2), steps[0])
        store.load(make_state(), step=2)
        assert_child(save(store, 3), steps[1])  # 3 continued from the former step 2
        assert_child(save(store, 3, parent=2), store.step_info(2))


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
