"""Names of wrappers in the keys of a step or of a state, and loads in which nothing matches."""

from __future__ import annotations

import pytest
import torch
from cairn_testing import Stateful, assert_same

import cairn


class Wrapper(torch.nn.Module):
    """As torch.compile, DistributedDataParallel and others: the model is below a name."""

    def __init__(self, model: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.add_module(name, model)


def new_model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.Linear(4, 2)))


def wrapped(*names: str, seed: int = 0) -> torch.nn.Module:
    """A model in wrappers, the part of it in the same ones."""
    model = new_model(seed)
    for name in names:
        model[1] = Wrapper(model[1], name)
    for name in names:
        model = Wrapper(model, name)
    return model


WRAPPERS = [
    ("_orig_mod",),
    ("module",),
    ("_fsdp_wrapped_module",),
    ("_checkpoint_wrapped_module",),
    ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module", "_orig_mod"),
    ("module", "module"),
]


def same(model: torch.nn.Module, other: torch.nn.Module) -> None:
    assert_same(list(model.state_dict().values()), list(other.state_dict().values()))


@pytest.mark.parametrize("names", WRAPPERS)
def test_names_of_wrappers_are_stripped_on_both_sides(store, names):
    model = wrapped(*names, seed=1)
    store.save(1, {"model": model})
    store.save(2, {"model": new_model(2)})
    for target in (new_model(), wrapped(*names), wrapped("_orig_mod")):
        for step, want in ((1, model), (2, new_model(2))):
            report = store.load({"model": target}, step, strip_wrappers=True)
            assert (report.missing, report.unexpected) == ((), ())
            same(target, want)
        store.pull({"model": target}, since=2, step=1, strip_wrappers=True)
        same(target, model)


def test_stripped_names_are_selected_renamed_and_below_a_prefix(store):
    model = wrapped("module", seed=1)
    store.save(1, {"model": model})

    target = new_model()
    store.load({"model": target}, keys="model.0", strip_wrappers=True)
    assert_same(target[0].weight.detach(), next(model.parameters()).detach())
    assert_same(target[1][0].weight.detach(), new_model()[1][0].weight.detach())

    target = new_model()
    store.load(target, prefix="model", strip_wrappers=True)
    same(target, model)

    target = new_model()
    store.load({"net": target}, rename={"^model": "net"}, strip_wrappers=True)
    same(target, model)


def test_an_object_with_names_of_parameters_keeps_its_own(store):
    def average(model: torch.nn.Module) -> Stateful:
        return Stateful(shadow=dict(model.state_dict()))

    store.save(1, {"ema": average(wrapped("module", seed=1))})
    given = average(new_model())
    store.load({"ema": given}, strip_wrappers=True)
    shadow = given.state["shadow"]
    assert list(shadow) == list(new_model().state_dict())
    assert_same(shadow["0.weight"], new_model(1)[0].weight.detach())


def test_two_keys_that_differ_only_by_wrappers_are_refused_unless_one_is_exact(store):
    store.save(1, {"module.a": torch.ones(2), "_orig_mod.a": torch.zeros(2)})
    with pytest.raises(cairn.Invalid, match="same name without wrappers"):
        store.load({"a": torch.zeros(2)}, strip_wrappers=True, strict=False)
    state = {"module.a": torch.zeros(2)}
    store.load(state, strip_wrappers=True, strict=False)
    assert_same(state, {"module.a": torch.ones(2)})


def test_a_load_of_nothing_is_an_error(store):
    model = wrapped("module")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    store.save(1, {"model": model, "optimizer": optimizer})
    message = "no key of 'model' of the state.* strip_wrappers=True"
    with pytest.raises(cairn.NotFound, match=message):
        store.load({"model": new_model(), "optimizer": optimizer}, strict=False)
    with pytest.raises(cairn.NotFound, match="no key of the state"):
        store.load({"other": torch.ones(1)}, strict=False)
    with pytest.raises(cairn.NotFound, match="no key of the state"):
        store.pull({"other": torch.ones(1)}, since=1, strict=False)
    # A part that only one side has is what the option is for.
    store.load({"model": model, "other": new_model()}, strict=False)
    store.load({}, strict=False)


def test_a_model_that_was_loaded_without_names_of_wrappers_is_checked_in_this_way(store):
    store.save(1, {"model": wrapped("module", seed=1), "n": 1})
    target = wrapped("_orig_mod")
    store.load({"model": target}, keys="model", strip_wrappers=True)
    with pytest.raises(cairn.NotFound, match="strip_wrappers=True"):
        store.check({"model": target}, keys="model")
    report = store.check({"model": target}, keys="model", strip_wrappers=True)
    assert report.equal and report.compared_bytes == 4 * (12 + 4 + 8 + 2)
    with torch.no_grad():
        target._orig_mod[0].weight[0, 0] += 1
    report = store.check({"model": target, "x": 1}, strip_wrappers=True)
    assert list(report.different) == ["model.module.0.weight"]
    assert (report.missing, report.unexpected) == (("x",), ("n",))
    # Also of a single module, and of a part.
    assert store.check(target, prefix="model", keys="1", strip_wrappers=True).equal
    for call in (store.load, store.check):
        with pytest.raises(cairn.NotFound, match="no key that matches"):
            call({"model": target}, keys="modle", strip_wrappers=True)
