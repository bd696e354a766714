"""Loading in place: what is filled, what is replaced, what is refused before anything changes."""

from __future__ import annotations

import copy
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same, damage, payload, shares_storage
from dtensors import assert_shard, sharded, whole
from ranks import with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn
from cairn.dcp import CairnReader


def test_tensors_keep_their_memory_and_values_are_replaced(store):
    saved = {
        "t": torch.arange(6.0).view(2, 3),
        "a": np.arange(4),
        "s": np.float32(2.5),
        "list": [1, {"x": "new"}],
        "od": OrderedDict(k=3),
    }
    store.save(1, saved)
    tensor, array, inner = torch.zeros(2, 3), np.zeros(4, np.int64), {"x": None}
    target = {"t": tensor, "a": array, "s": None, "list": [0, inner], "od": OrderedDict(k=0)}

    report = store.load(target)

    assert (report.step, report.missing, report.unexpected) == (1, (), ())
    assert target["t"] is tensor and target["a"] is array and target["list"][1] is inner
    assert_same(target, saved)


def test_tuples_around_values_are_made_anew(store):
    saved = {"t": (1, (2, [3], torch.ones(2)), torch.Size([4])), "u": ((5,),)}
    store.save(1, saved)
    tensor, inner_list = torch.zeros(2), [0]
    target = {"t": (0, (0, inner_list, tensor), torch.Size([0])), "u": ((0,),)}
    store.load(target)
    assert_same(target, saved)
    assert target["t"][1][1] is inner_list and target["t"][1][2] is tensor


def test_a_root_tuple_may_hold_containers_but_no_values(store):
    store.save(1, ({"a": 1}, [2]))
    target = ({"a": 0}, [0])
    store.load(target)
    assert target == ({"a": 1}, [2])

    store.save(2, ({"a": 1}, 2))
    target = ({"a": 0}, 0)
    with pytest.raises(cairn.Invalid, match="put the state into a dict"):
        store.load(target)
    assert target == ({"a": 0}, 0)


TARGETS = {
    "transposed": torch.zeros(5, 4).t(),
    "strided": torch.zeros(8, 10)[::2, ::2],
    "grad": torch.zeros(4, 5, requires_grad=True),
    "param": torch.nn.Parameter(torch.zeros(4, 5)),
    "imag": torch.zeros(4, 5, dtype=torch.complex64).imag,
    "neg": torch.zeros(4, 5, dtype=torch.complex64).conj().imag,
    "array": np.zeros((4, 5), np.float32),
    "fortran": np.zeros((5, 4), np.float32).T,
    "big": np.zeros((4, 5), ">f4"),
    "back": np.zeros((4, 5), np.float32)[::-1],
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_any_layout_of_target_is_filled(store, target):
    values = torch.arange(20.0).view(4, 5)
    store.save(1, {"t": values})
    store.load({"t": target})
    got = target.detach().resolve_neg().numpy() if isinstance(target, torch.Tensor) else target
    assert np.array_equal(got, values.numpy())


def test_tied_targets_are_filled_once(store):
    weight = torch.randn(5)
    store.save(1, {"a": weight, "b": weight, "view": weight[1:3]})
    tied = torch.zeros(5)
    target = {"a": tied, "b": tied, "view": tied[1:3]}
    store.load(target)
    assert torch.equal(tied, weight) and shares_storage(target["view"], tied)


@pytest.mark.parametrize("rename", [None, {"^(.)$": r"\1"}, {"^(.)$": r"x\1"}])
def test_equal_copies_in_the_step_fill_a_tied_target(store, rename):
    values = torch.arange(3_000_000, dtype=torch.float32).view(3, -1)  # several chunks
    store.save(1, {"a": values.clone(), "b": values.clone(), "c": values.clone()})
    tied = torch.zeros_like(values)
    names = ("xa", "xb", "xc") if rename == {"^(.)$": r"x\1"} else ("a", "b", "c")

    report = store.load(dict.fromkeys(names, tied), rename=rename)

    assert_same(tied, values)
    assert report.bytes_read < 2 * values.nbytes  # only one of the copies
    values[2, -1] += 1
    store.save(2, {"a": tied, "b": values, "c": tied.clone()})
    before = tied.clone()
    with pytest.raises(cairn.Invalid, match="two different tensors in step 2"):
        store.load(dict.fromkeys(names, tied), rename=rename)
    assert_same(tied, before)


def test_a_pull_updates_a_tied_target_from_equal_copies(store):
    values = torch.arange(3_000_000, dtype=torch.float32)
    tied = values.clone()
    store.save(1, {"a": values.clone(), "b": values.clone()})
    values[7] = 0
    store.save(2, {"a": values.clone(), "b": values.clone()})
    assert store.pull({"a": tied, "b": tied}, since=1).changed == ("a", "b")
    assert_same(tied, values)


@with_ranks(2)
def test_equal_copies_fill_a_tied_target_that_ranks_share(rank, path):
    mesh = init_device_mesh("cpu", (2,))
    placements = (Shard(0),)
    with cairn.open(path, mode="a") as store:
        copies = {key: sharded(whole("uneven"), mesh, placements) for key in "ab"}
        store.save(1, copies)
        tied = sharded(torch.zeros(7, 5), mesh, placements)
        store.load({"a": tied, "b": tied})
        assert_shard(tied, whole("uneven"), mesh, placements)
        store.save(2, copies | {"b": sharded(whole("uneven", 1), mesh, placements)})
        with pytest.raises(cairn.Invalid, match="two different tensors in step 2"):
            store.load({"a": tied, "b": tied})


SAVED = {"a": torch.ones(2), "b": {"c": torch.ones(3), "d": 4}, "n": np.int32(5)}


@pytest.mark.parametrize(
    ("change", "error", "key"),
    [
        (lambda s: s.update(new=torch.zeros(1)), cairn.NotFound, "new"),
        (lambda s: s["b"].update(new=0), cairn.NotFound, "b.new"),
        (lambda s: s["b"].pop("d"), cairn.Invalid, "b.d"),
        (lambda s: s["b"].update(c=torch.zeros(4)), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=torch.zeros(3, 1)), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=torch.zeros(3, dtype=torch.float16)), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=torch.empty(4, device="meta")), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=np.zeros(3)), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=torch.zeros(1).expand(3)), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=np.broadcast_to(np.float32(0), 3)), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=0), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(c=np.float32(0)), cairn.Invalid, "b.c"),
        (lambda s: s["b"].update(d=torch.zeros(1)), cairn.Invalid, "b.d"),
        (lambda s: s.update({"b.d": 0}), cairn.NotFound, "b\\.d"),
    ],
)
def test_nothing_changes_when_a_load_is_refused(store, change, error, key):
    store.save(1, SAVED)
    target = {"a": torch.zeros(2), "b": {"c": torch.zeros(3), "d": 0}, "n": np.int32(0)}
    change(target)
    before = copy.copy(target), copy.copy(target["b"])

    with pytest.raises(error) as caught:
        store.load(target)

    assert caught.value.key == key
    assert f"'{key}'" in str(caught.value)
    assert torch.equal(target["a"], torch.zeros(2))
    assert all(now is was for now, was in zip(target.values(), before[0].values()))
    assert all(now is was for now, was in zip(target["b"].values(), before[1].values()))


def test_all_mismatches_are_one_error(store):
    saved = {"shape": torch.ones(2), "dtype": torch.ones(2), "kind": 1, "ok": torch.ones(2)}
    store.save(1, saved | {"tied": torch.ones(3), "other": torch.zeros(3)})
    tied = torch.full((3,), 7.0)
    state = {
        "shape": torch.zeros(3),
        "dtype": torch.zeros(2, dtype=torch.float64),
        "kind": torch.zeros(2),
        "ok": torch.zeros(2),
        "tied": tied,
        "other": tied,
    }
    for load in (store.load, lambda state: store.pull(state, since=1)):
        with pytest.raises(cairn.Invalid, match="4 keys are refused") as refused:
            load(state)
        assert all(f"'{key}'" in str(refused.value) for key in ("shape", "dtype", "kind", "other"))
        assert torch.equal(state["ok"], torch.zeros(2))


def test_not_strict_loads_what_both_have_and_tells_the_rest(store):
    store.save(1, SAVED)
    target = {"a": torch.zeros(2), "b": {"new": 1, "d": 0}, "x": torch.zeros(9)}
    report = store.load(target, strict=False)
    assert report.missing == ("b.new", "x")
    assert report.unexpected == ("b.c", "n")
    assert_same(target, {"a": torch.ones(2), "b": {"new": 1, "d": 4}, "x": torch.zeros(9)})

    with pytest.raises(cairn.Invalid, match="float64"):
        store.load({"a": torch.zeros(2, dtype=torch.float64)}, strict=False)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 4)
        self.head = torch.nn.Linear(4, 10)
        self.head.weight = self.embedding.weight


def test_a_meta_module_keeps_its_ties(store):
    model = Tied()
    store.save(1, {"model": model})
    with torch.device("meta"):
        made = Tied()
    store.load({"model": made})
    assert made.head.weight is made.embedding.weight and len(list(made.parameters())) == 2
    assert_same(dict(made.state_dict()), dict(model.state_dict()))


def test_autograd_notices_a_load_that_fails(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"a": torch.ones(4), "b": torch.full((50_000,), 7.0)})
    damage(path, payload(torch.full((50_000,), 7.0)))
    weight = torch.nn.Parameter(torch.zeros(4))
    loss = (weight * weight).sum()
    with cairn.open(path) as store, pytest.raises(cairn.Corrupt):
        store.load({"a": weight, "b": torch.zeros(50_000)})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@with_ranks(2)
def test_autograd_notices_a_load_of_shards(rank, path):
    mesh = init_device_mesh("cpu", (2,))
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": distribute_tensor(torch.ones(4), mesh, [Shard(0)])})
        weight = torch.nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
        loss = (weight * weight).sum()
        store.load({"w": weight})
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


LOADS = {
    "load": lambda store, weight: store.load({"w": weight}, step=1),
    "converted": lambda store, weight: store.load({"x": weight}, step=1, rename={"^w$": "x"}),
    "out": lambda store, weight: store.read_slice("w", [], step=1, out=weight.detach()),
    "pull": lambda store, weight: store.pull({"w": weight}, since=1, step=2),
    "DCP": lambda store, weight: dcp.load(
        {"w": weight}, storage_reader=CairnReader(store.address), no_dist=True
    ),
}


@pytest.mark.parametrize("strides", [(2, 1), (1, 2)], ids=["row-major", "transposed"])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_autograd_notices_a_load_before_the_backward_pass(store, load, strides):
    store.save(1, {"w": torch.ones(2, 2)})
    store.save(2, {"w": torch.full((2, 2), 2.0)})
    weight = torch.nn.Parameter(torch.empty_strided((2, 2), strides).fill_(1))
    loss = (weight * weight).sum()
    load(store, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
