"""Tags, metrics and notes of steps, and pruning by them."""

import math

import numpy as np
import pytest
import torch

import cairn
from cairn import Invalid, NotFound
from cairn.torch import Saver


def test_a_save_records_metrics_tags_and_a_note(store):
    store.save(1, {"a": 1}, metrics={"val_loss": 2.5, "nan": math.nan}, tags=["best", "v1.0"],
               note="two\nlines \u00e9")
    store.save_async(2, {"a": 2}, metrics={"val_loss": 3}, tags=["v1.0"]).result()
    info = store.step_info(1)
    assert (info.step, info.tags, info.tensors, info.values) == (1, ("best",), 0, 1)
    assert info.metrics["val_loss"] == 2.5 and math.isnan(info.metrics["nan"])
    assert info.note == "two\nlines \u00e9"
    assert store.step_info("v1.0").step == 2
    assert store.tags() == {"best": 1, "v1.0": 2}


def test_a_tag_addresses_its_step(store):
    for step in (1, 2, 3):
        store.save(step, {"a": step})
    store.tag(2, "best")
    assert store.read(step="best") == {"a": 2}
    state = {"a": 0}
    assert store.load(state, step="best").step == 2
    assert state == {"a": 2}
    assert list(store.keys("best")) == ["a"]
    assert len(store.diff("best", 3).changes) == 1
    store.tag(3, "best")
    assert store.read(step="best") == {"a": 3}
    store.untag("best")
    with pytest.raises(NotFound, match="no step has the tag 'best'"):
        store.read(step="best")


def test_impossible_annotations_are_refused_before_anything_is_saved(store):
    for arguments in ({"tags": ["7"]}, {"tags": "best"}, {"tags": [1]}, {"metrics": {"a b": 1}},
                      {"metrics": {1: 1}}, {"note": "\ud800"}, {"note": "x" * 5000}):
        with pytest.raises(Invalid):
            store.save(1, {"a": 1}, **arguments)
        with pytest.raises(Invalid):
            store.save_async(1, {"a": 1}, **arguments)
    assert store.steps() == []
    with pytest.raises(NotFound):
        store.tag(1, "best")


def test_a_prune_and_a_saver_keep_the_best_and_the_tagged(store):
    for step, loss in enumerate([5.0, 1.0, 4.0, 2.0, 3.0, 9.0]):
        store.save(step, {"a": step}, metrics={"loss": loss, "accuracy": loss})
    store.tag(2, "release")
    report = store.prune(keep_last=1, keep_best=["loss:1", "accuracy:1:max"])
    assert report.steps == (0, 3, 4)
    assert store.steps() == [1, 2, 5]
    store.delete(1, 2, 5)
    losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0, 50: 5.0}
    with Saver(store, every=10, keep_last=1, keep_best="loss:2", signals=()) as saver:
        for step, loss in losses.items():
            saver.step(step, {"a": step}, metrics={"loss": loss})
    assert store.steps() == [20, 30, 50]
    with pytest.raises(Invalid):
        store.prune()
    for wrong in ("loss", "loss:x"):
        with pytest.raises(Invalid, match="METRIC:N"):
            store.prune(keep_best=wrong)
        with pytest.raises(Invalid, match="METRIC:N"):
            store.set_policy(keep_best=wrong)
        with pytest.raises(Invalid, match="METRIC:N"):
            Saver(store, every=1, keep_best=wrong, signals=())


def test_each_save_applies_the_policy_of_the_store(path):
    state = {"a": 1, "step": 0}
    with cairn.open(path, mode="a") as store:
        assert store.policy() is None
        store.set_policy(keep_last=2, keep_every=4, keep_best="loss:1")
        for step in range(1, 4):
            store.save(step, state, metrics={"loss": step})
    with cairn.open(path, mode="a") as store:
        assert store.policy() == cairn.RetentionPolicy(2, 4, ("loss:1",))
        for step in range(4, 11):
            state["step"] = step
            store.save_async(step, state, metrics={"loss": step}).result()
        assert store.steps() == [1, 4, 8, 9, 10]
        store.set_policy(keep_last=1)
        assert store.steps() == [1, 4, 8, 9, 10]
        assert store.prune().steps == (1, 4, 8, 9)
        store.set_policy()
        assert store.policy() is None
        with pytest.raises(Invalid, match="no policy"):
            store.prune()
        with pytest.raises(Invalid, match="negative"):
            store.set_policy(keep_last=-1)


def test_the_policy_keeps_steps_that_wait_for_a_mirror(store, monkeypatch):
    state = {"a": torch.ones(3)}
    store.set_policy(keep_last=1)
    store.save(1, state)
    monkeypatch.setattr(store.opened, "pinned", lambda: {1})
    for step, change in {
        2: lambda: store.save(2, state),
        3: lambda: store.save_async(3, state).result(),
        4: lambda: store.edit(3, into=4),
        5: lambda: store.merge([1, 4], into=5),
    }.items():
        change()
        assert store.steps() == [1, step]
    monkeypatch.setattr(store.opened, "pinned", set)
    store.save(6, state)
    assert store.steps() == [6]


def test_a_damaged_step_that_the_policy_does_not_keep_fails_no_save(path):
    state = {f"t{i}": np.full(70_000, i) for i in range(20)}
    tables = {}
    with cairn.open(path, mode="a") as store:
        for step in range(1, 21):  # the later ones use too many segments for a list in the root
            state[f"t{step - 1}"] = state[f"t{step - 1}"] + 100
            store.save(step, state)
            tables[step] = set((path / "tables").iterdir())
    (table,) = tables[18] - tables[17]
    table.chmod(0o644)
    table.write_bytes(b"\xff" * table.stat().st_size)
    with cairn.open(path, mode="a") as store:
        store.set_policy(keep_last=2)
        store.save(21, state)
        store.save(22, state)
        assert store.steps() == [18, 21, 22]
        with pytest.raises(cairn.errors.Corrupt):
            store.delete(18)


def test_a_copy_is_not_subject_to_the_policy(store, tmp_path):
    for step in range(1, 4):
        store.save(step, {"a": step})
    with cairn.open(tmp_path / "copy", mode="a") as copy:
        copy.set_policy(keep_last=1)
        cairn.copy_steps(store, copy)
        assert copy.steps() == [1, 2, 3]
        copy.save(4, {"a": 4})
        assert copy.steps() == [4]
