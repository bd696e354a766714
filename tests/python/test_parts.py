"""Parts of states: Statefuls, prefixes, key patterns, frozen parameters."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from cairn_testing import Stateful, assert_same
from torch import nn

import cairn


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        OrderedDict(encoder=nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), head=nn.Linear(5, 2))
    )


def test_stateful_values_give_and_take_their_state_dict(store):
    model, optimizer = net(1), torch.optim.Adam(net(1).parameters())
    loader = Stateful(count=3, history=torch.arange(3))
    state = {"model": model, "optimizer": optimizer, "loader": loader, "epoch": 7, "at": (1, 2)}
    store.save(1, state)
    assert_same(store.read()["loader"], {"count": 3, "history": torch.arange(3)})
    assert_same(store.read()["model"], model.state_dict())

    other = net(2)
    loader.state["count"] = 99
    target = {"model": other, "optimizer": optimizer, "loader": loader, "epoch": 0, "at": (0, 0)}
    store.load(target)
    assert_same(other.state_dict(), model.state_dict())
    assert loader.state["count"] == 3
    assert target["epoch"] == 7 and target["at"] == (1, 2)
    assert target["model"] is other and target["loader"] is loader


def test_only_objects_at_the_top_level_are_stateful(store):
    for state, key in (({"a": {"b": Stateful()}}, "a.b"), ({"a": Stateful}, "a")):
        with pytest.raises(cairn.Invalid) as refused:
            store.save(1, state)
        assert refused.value.key == key


def test_a_meta_module_gets_memory(store):
    model = net(1)
    store.save(1, {"model": model})
    with torch.device("meta"):
        empty = net()
    store.load({"model": empty})
    assert_same(empty.state_dict(), model.state_dict())
    assert empty.head.weight.requires_grad and not empty.encoder[1].running_mean.requires_grad


def test_meta_tensors_keep_what_they_are(store):
    tensor = torch.arange(12.0).view(3, 4)
    store.save(1, {"plain": tensor, "parameter": tensor, "frozen": tensor, "turned": tensor.T})
    meta = torch.empty(3, 4, device="meta")
    state = {
        "plain": meta.clone(),
        "parameter": nn.Parameter(meta),
        "frozen": nn.Parameter(meta.clone(), requires_grad=False),
        "turned": meta.clone().T,
    }
    store.load(state, device="cpu")
    assert type(state["plain"]) is torch.Tensor and not state["plain"].requires_grad
    assert type(state["parameter"]) is nn.Parameter and state["parameter"].requires_grad
    assert type(state["frozen"]) is nn.Parameter and not state["frozen"].requires_grad
    assert state["turned"].stride() == (1, 4)
    for name in ("plain", "parameter", "frozen"):
        assert torch.equal(state[name], tensor)
    assert torch.equal(state["turned"], tensor.T)


def test_tied_meta_tensors_stay_tied(store):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

    store.save(1, Tied().state_dict())
    with torch.device("meta"):
        state = Tied().state_dict()  # two tensors of one storage
    assert state["a.weight"] is not state["b.weight"]
    store.load(state)
    assert state["a.weight"].data_ptr() == state["b.weight"].data_ptr()
    assert_same(state, store.read())


def test_meta_tensors_get_memory_whatever_the_default_device(store):
    store.save(1, {"t": torch.ones(2)})
    state = {"t": torch.empty(2, device="meta")}
    with torch.device("meta"):  # no place for what is loaded
        store.load(state)
    assert state["t"].device.type == "cpu" and state["t"].tolist() == [1, 1]


def test_a_submodule_is_loaded_without_its_prefix(store):
    model = net(1)
    store.save(1, {"model": model})
    other = net(2)
    report = store.load(other.encoder.state_dict(), prefix="model.encoder")
    assert report.missing == report.unexpected == ()
    assert_same(other.encoder.state_dict(), model.encoder.state_dict())
    assert not torch.equal(other.head.weight, model.head.weight)
    # A part of the part, by patterns relative to it; a prefix may end in the separator.
    third = net(3)
    store.load(third.encoder, prefix="model.encoder.", keys=["*.weight", "!1"])
    assert torch.equal(third.encoder[0].weight, model.encoder[0].weight)
    assert not torch.equal(third.encoder[0].bias, model.encoder[0].bias)
    assert torch.equal(third.encoder[1].weight, torch.ones(5))
    with pytest.raises(cairn.NotFound, match="model.decoder"):
        store.load(third.encoder, prefix="model.decoder")
    with pytest.raises(cairn.NotFound, match="'model.encoder.more'"):
        store.load({"more": torch.ones(1)}, prefix="model.encoder")


def test_a_submodule_is_saved_under_its_prefix(store):
    model = net(1)
    store.save(1, model.encoder, prefix="model.encoder")
    store.save_async(
        2, model.encoder.state_dict(), prefix="model.encoder", keys="*.weight"
    ).result()
    assert set(store.keys(1)) == {f"model.encoder.{key}" for key in model.encoder.state_dict()}
    assert list(store.keys(2)) == ["model.encoder.0.weight", "model.encoder.1.weight"]
    other = net(2)
    report = store.load({"model": other}, step=1, strict=False)
    assert report.missing == ("model.head.weight", "model.head.bias")
    assert_same(other.encoder.state_dict(), model.encoder.state_dict())


def test_prefixes_with_wildcards_in_their_names_mean_themselves(store):
    store.save(1, {"a[0]*": {"x": {"z": 1}, "y": 3}, "b": 2})
    state = {"x": {"z": 0}, "y": 0}
    store.load(state, prefix="a[0]*")
    assert state == {"x": {"z": 1}, "y": 3}
    state = {"x": {"z": 0}, "y": 0}
    store.load(state, prefix="a[0]*", keys="x")
    assert state == {"x": {"z": 1}, "y": 0}


def test_keys_leave_out_and_pick(store):
    state = {"model": net(1).state_dict(), "big": torch.ones(9), "list": [1, 2, 3]}
    store.save(1, state, keys=["!model.encoder", "!list.1"])
    assert list(store.keys()) == ["model.head.weight", "model.head.bias", "big", "list.0", "list.2"]
    assert_same(store.read()["list"], {0: 1, 2: 3})
    with pytest.raises(cairn.Invalid, match="matches .*'mdoel'"):
        store.save(2, state, keys="mdoel")
    # What is not selected is neither looked at nor refused.
    store.save(2, {"a": 1, "b": object()}, keys="a")
    target = {"big": torch.zeros(9), "list": [0, 0], "other": object()}
    report = store.load(target, step=1, keys=["big", "list.0"])
    assert target["big"].tolist() == [1] * 9 and target["list"] == [1, 0]
    assert report.missing == report.unexpected == ()
    with pytest.raises(cairn.NotFound):
        store.load(target, step=1, keys="nothing")
    with pytest.raises(cairn.NotFound, match="'other'"):
        store.load(target, step=1, keys=["big", "other"])


def test_frozen_parameters_are_left_out(store):
    model = net(1)
    model.encoder.requires_grad_(False)
    store.save(1, {"model": model, "n": 1}, tuning=cairn.SaveTuning(ignore_frozen=True))
    kept = [
        key for key in model.state_dict() if "encoder.0" not in key and key != "encoder.1.weight"
    ]
    kept.remove("encoder.1.bias")
    assert list(store.keys()) == [f"model.{key}" for key in kept] + ["n"]

    other = net(2)
    other.encoder.requires_grad_(False)
    frozen = other.encoder[0].weight.clone()
    target = {"model": other, "n": 0}
    store.load(target, ignore_frozen=True)
    assert torch.equal(other.head.weight, model.head.weight) and target["n"] == 1
    assert torch.equal(other.encoder[0].weight, frozen)
    # Whether the step has them or not.
    store.save(2, {"model": model, "n": 2})
    report = store.load(target, ignore_frozen=True)
    assert report.unexpected == () and torch.equal(other.encoder[0].weight, frozen)
    store.load(target)
    assert torch.equal(other.encoder[0].weight, model.encoder[0].weight)
