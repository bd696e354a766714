"""What ranks hold under one key, but a step stores of one of them: refused, or one warning."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from dtensors import sharded, whole
from ranks import with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

import cairn
from cairn import SaveTuning
from cairn._by_address import save_by_address

REFUSE, WARN, IGNORE = (SaveTuning(differing=one) for one in ("refuse", "warn", "ignore"))


def state_of(rank: int, differs: int = 2) -> dict:
    """`differs`: the rank with another expert."""
    return {
        "same": torch.arange(100_000.0),
        "expert": torch.full((300, 300), float(rank == differs)),
        "array": np.arange(5),
        f"own.{rank}": torch.full((5,), float(rank)),
        "t": sharded(whole("even"), init_device_mesh("cpu", (4,)), (Shard(0),)),
    }


@with_ranks()
def test_tensors_that_differ_are_refused_by_default(rank, path):
    with cairn.open(path, mode="a") as store:
        for save in (store.save, store.save_async):
            with pytest.raises(cairn.Invalid, match="rank 2 holds other data than rank 0") as error:
                save(1, state_of(rank))
            assert error.value.key == "expert"
        with pytest.raises(cairn.Invalid, match="ranks 1, 2, 3 hold other data than rank 0"):
            store.save(1, state_of(rank, differs=0))
        with pytest.raises(cairn.Invalid, match="'array': .*; 'expert': rank 2"):
            store.save(1, {**state_of(rank), "array": np.arange(5) + rank})
        with pytest.raises(cairn.Invalid, match="rank 3 holds") as error:  # not of rank 0
            store.save(1, {"late": torch.full((7,), float(rank == 3))} if rank > 0 else {})
        assert error.value.key == "late"
        assert store.steps() == []
        store.save(1, state_of(rank, differs=9))  # the store is as good as before
        store.save(2, state_of(rank), tuning=IGNORE)
        assert store.read("expert")["expert"].sum() == 0


@with_ranks()
def test_a_transposed_copy_is_equal(rank, path):
    with cairn.open(path, mode="a") as store:
        value = torch.arange(90_000.0).reshape(300, 300)
        for step in range(3):
            store.save(step, {"w": value.t().contiguous().t() if rank % 2 else value})


@with_ranks(2)
def test_values_that_differ_cause_one_warning(rank, path):
    with cairn.open(path, mode="a") as store:
        state = {"w": torch.ones(5), "position": rank, "long": bytes([rank]) * 10_000, "same": 3}
        text = "'long': rank 1 holds another value than rank 0; 'position': rank 1"
        if rank == 0:
            with pytest.warns(RuntimeWarning, match=text):
                store.save(1, state)
        else:
            store.save(1, state)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            store.save(2, state)
            with pytest.raises(cairn.Invalid, match="other data"):  # tensors are still refused
                store.save(3, {**state, "w": torch.full((5,), float(rank))})
        with pytest.raises(cairn.Invalid, match="another value"):
            store.save(3, state, tuning=REFUSE)
        assert store.read()["position"] == 0


@with_ranks(2)
def test_by_option_tensors_cause_a_warning(rank, path):
    with cairn.open(path, mode="a") as store:
        state = {"w": torch.full((5,), float(rank))}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in (1, 2):
                store.save(step, state, tuning=WARN)
        assert [str(one.message)[:4] for one in caught] == (["'w':"] if rank == 0 else [])
        with pytest.raises(cairn.Invalid, match="not the same on all ranks"):
            store.save(3, state, tuning=WARN if rank else IGNORE)
        with pytest.raises(cairn.Invalid, match="differing='x'"):  # on all ranks, of one
            store.save(3, state, tuning=SaveTuning(differing="x") if rank else IGNORE)
        store.save(3, state, tuning=IGNORE)


@with_ranks(2)
def test_a_sampled_difference_is_refused_in_the_first_save_and_causes_a_warning_later(rank, path):
    """Each save compares other elements of a large tensor: in the first one 64 runs, later 8."""
    value = torch.zeros(256 * 256)
    value[40] += rank
    with cairn.open(path, mode="a") as store:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(4):
                store.save(step, {"w": value})
                assert len(caught) == (rank == 0 and step >= 2)
        with pytest.raises(cairn.Invalid, match="'w': rank 1 holds other data"):
            store.save(513, {"w": value}, tuning=REFUSE)
    with cairn.open(path, mode="a") as store:
        with pytest.raises(cairn.Invalid, match="'w': rank 1 holds other data"):
            store.save(65, {"w": value})


@with_ranks(2)
def test_buffers_that_differ_cause_one_warning_without_advice_to_rename_them(rank, path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    model.register_buffer("seen", torch.zeros(3))
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(0)
    model[1].running_mean.fill_(rank)
    model.seen.fill_(rank)
    with cairn.open(path, mode="a") as store:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            store.save(1, {"model": model})
            store.save(2, {"model": model, "position": rank})
    assert len(caught) == (2 if rank == 0 else 0)
    if rank == 0:
        first, second = (str(one.message) for one in caught)
        assert "running_mean': rank 1" in first and "seen': rank 1" in first
        assert "name.{rank}" not in first
        assert second.startswith("'position': rank 1 holds another value")


def exchanged(store: cairn.Store) -> list[int]:
    """The lengths of what this rank sends to the others from now on."""
    lengths: list[int] = []
    exchange = store.opened.ranks.exchange

    def counted(work):
        def own() -> bytes:
            message = work()
            lengths.append(len(message))
            return message

        return exchange(own)

    store.opened.ranks.exchange = counted
    return lengths


@with_ranks()
def test_keys_that_only_some_ranks_have_are_compared_among_these(rank, path):
    """Two stages of a pipeline, each on two ranks, and a random state per rank."""
    stage = f"stage{rank // 2}"
    state = {f"{stage}.{i}": torch.full((9,), float(i)) for i in range(2000)}
    if rank % 2:  # another order of the same keys
        state = dict(reversed(state.items()))
    state |= {f"rng.{rank}": torch.full((5,), float(rank)), "all": torch.ones(3)}
    with cairn.open(path, mode="a") as store:
        lengths = exchanged(store)
        store.save(1, state)
        store.save(2, state)
        assert len(lengths) == 4 and lengths[-1] < 1000  # the lists of keys only once
        different = {**state, f"{stage}.7": torch.full((9,), float(rank))}
        text = r"'stage0\.7': rank 1 holds .* rank 0; 'stage1\.7': rank 3 holds .* rank 2\. "
        for step in (3, 4):
            with pytest.raises(cairn.Invalid, match=text):
                store.save(step, different)
        assert max(lengths[4:]) < 20_000  # only samples of the parts that differ
        with pytest.raises(cairn.Invalid, match="'all': rank 3 holds other data than rank 0"):
            store.save(5, {**state, "all": torch.full((3,), float(rank == 3))})
        store.save(6, {**state, f"new.{rank}": torch.ones(2), "late": torch.ones(2)})
        assert store.read("late")["late"].tolist() == [1, 1]


@with_ranks(2)
def test_saves_by_address_compare_as_those_of_one_store(rank, path):
    value = torch.zeros(256 * 256)
    value[40] += rank  # is compared in step 2 (see above)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(4):
            save_by_address(path, step, {"w": value})
            assert len(caught) == (rank == 0 and step >= 2)
