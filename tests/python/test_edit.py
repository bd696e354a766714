"""`Store.edit`: the step is what a save of the edited state is, after its sources were deleted."""

from collections import OrderedDict

import pytest
import torch

import cairn
from cairn import Conflict, Invalid, NotFound


@pytest.fixture
def store(tmp_path):
    with cairn.open(tmp_path / "store", mode="a", grace=0) as opened:
        yield opened


def sample():
    tied = torch.randn(50, 20)
    return {
        "model": OrderedDict({"wte.weight": tied, "head.weight": tied, "norm": torch.ones(20)}),
        "optimizer": {"state": {0: {"exp_avg": torch.randn(50, 20)}}, "groups": [{"lr": 0.1}]},
        "step": 7,
    }


def assert_same(store, step, expected):
    """Compares with a save of `expected`; the sources of `step` are deleted first."""
    store.delete(*(other for other in store.steps() if other != step))
    assert store.save(1000, expected).written_bytes == 0  # every chunk is found by its digest
    diff = store.diff(step, 1000)
    assert not diff.changes, diff.changes
    assert repr(store.read(step=step)) == repr(store.read(step=1000)) == repr(expected)


def test_all_changes_in_one_commit(store):
    state = sample()
    store.save(1, state)
    store.save(
        2,
        {"model": {"norm": torch.zeros(9)}, "epoch": 3},
        tuning=cairn.SaveTuning(incremental=False),
    )
    store.edit(
        1, into=3, drop="optimizer.state", rename={"model": "net"}, graft_from=2, graft="epoch"
    )
    expected = {"net": state["model"], "optimizer": {"groups": [{"lr": 0.1}]}, "step": 7}
    assert_same(store, 3, {**expected, "epoch": 3})


@pytest.mark.parametrize("is_open", [True, False], ids=["a store", "an address"])
def test_a_fork_to_another_store(store, tmp_path, is_open):
    state = sample()
    store.save(1, state, metrics={"loss": 2.0}, tags=["best"])
    path = tmp_path / "other"

    def fork(step, **arguments):
        if is_open:
            with cairn.open(path, mode="a", grace=0) as target:
                store.fork(step, to=target, **arguments)
        else:
            store.fork(step, to=path, **arguments)

    fork(1)
    fork(1, into=0)
    fork(1, into=0)  # it exists already
    store.save(2, {"w": torch.ones(3)}, tuning=cairn.SaveTuning(incremental=False))
    with pytest.raises(Conflict):
        fork(2, into=0)
    with pytest.raises(NotFound):
        fork(7)
    store.delete(1, 2)
    with cairn.open(path, mode="a", grace=0) as other:
        assert other.steps() == [0, 1]
        assert other.tags() == {}
        info = other.step_info(0)
        assert (info.metrics, info.base_step) == ({"loss": 2.0}, None)
        report = other.save(5, state, tuning=cairn.SaveTuning(base_step=0))
        assert report.written_bytes == 0
        other.delete(5)
        assert_same(other, 0, state)


def test_changes_wait_for_the_save_of_their_source(store, tmp_path):
    store.save_async(1, {"w": torch.zeros(1000), "v": 1})
    store.fork(1, to=tmp_path / "other", into=9)
    with cairn.open(tmp_path / "other") as other:
        assert other.steps() == [9]
    store.save_async(2, {"w": torch.ones(1000), "v": 2})
    store.edit(2, into=3, drop="v")
    store.save_async(4, {"w": torch.ones(1000), "v": 2})
    store.merge([1, 4], into=5)
    assert store.steps() == [1, 2, 3, 4, 5]
    assert torch.equal(store.read(step=5)["w"], torch.full((1000,), 0.5))


def test_arguments_are_checked(store):
    store.save(1, sample())
    with pytest.raises(Invalid, match="graft_from"):
        store.edit(1, into=2, graft="model")
    with pytest.raises(NotFound, match="typo"):
        store.edit(1, into=2, drop="typo")
    with pytest.raises(Invalid, match="step"):
        store.edit(1, into=2, rename={"model.norm": "step"})
    with pytest.raises(Conflict):
        store.edit(1, into=1, drop="step")
    with pytest.raises(Conflict):
        store.fork(1, into=1)
    with pytest.raises(Invalid, match="into="):
        store.fork(1)
    assert store.steps() == [1]
    with cairn.open(store.address) as reader, pytest.raises(Invalid, match="reading"):
        reader.edit(1, into=2)
