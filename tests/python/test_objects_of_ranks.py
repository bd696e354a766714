"""Which parts of a step an object receives: on ranks whose objects have different states, if a part
does not fit, and if a part is damaged."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from cairn_testing import Stateful, assert_same, damage, payload
from ranks import with_ranks
from test_object_states import Average, WithExtraState, new_model, sharded_model, train
from torch.testing._internal.two_tensor import TwoTensor

import cairn
import cairn.torch
from cairn._tensors import subclass_registry


def trained(steps: int, make: Any = torch.optim.AdamW, **options: Any) -> tuple[Any, Any]:
    model = new_model()
    optimizer = make(model.parameters(), **options)
    train(model, optimizer, 0, steps)
    return model, optimizer


def shadow(*names: str, value: float = 1) -> dict[str, torch.Tensor]:
    return {name: torch.full((2,), value) for name in names}


@with_ranks(2)
def test_a_replaced_worker_receives_what_the_survivors_have(rank, path):
    def parts(steps: int) -> dict[str, Any]:
        model, optimizer = trained(steps)
        average = Average()
        for step in range(steps):
            average.update(model, step)
        nested = Stateful(optimizer=optimizer.state_dict(), best={"loss": 1.5} if steps else None)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2),
            "ema": average,
            "nested": nested,
            "extra": WithExtraState({"amax": torch.ones(3), "n": [1, 2]} if steps else None),
            "lazy": Stateful(**({"n": 1, "w": torch.ones(2)} if steps else {})),
        }

    with cairn.open(path, mode="a") as store:
        want = parts(3)
        store.save(3, want)
        given = parts(0 if rank else 2)
        report = store.load(given)
        assert (report.missing, report.unexpected) == ((), ())
        for name, one in want.items():
            assert_same(dict(given[name].state_dict()), dict(one.state_dict()), name)


@with_ranks(2)
@pytest.mark.parametrize("read_once", [False, True])
def test_a_replaced_worker_receives_its_shards(rank, path, read_once):
    with cairn.open(path, mode="a") as store:
        model = sharded_model()
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, 0, 2)
        store.save(2, {"model": model, "optimizer": optimizer})
        given = torch.optim.AdamW(model.parameters()) if rank else optimizer
        store.load({"model": model, "optimizer": given}, read_once=read_once)
        assert_same(given.state_dict(), optimizer.state_dict())


@with_ranks(2)
def test_the_state_of_a_parameter_is_complete_on_each_rank(rank, path):
    with cairn.open(path, mode="a") as store:
        _, optimizer = trained(2, amsgrad=True)
        store.save(2, {"optimizer": optimizer})
        _, given = trained(1, amsgrad=rank == 0)
        store.load({"optimizer": given})
        assert_same(given.state_dict(), optimizer.state_dict())


@with_ranks(4)
def test_stages_of_a_pipeline_receive_their_own_parts(rank, path):
    stage = rank // 2
    with cairn.open(path, mode="a") as store:
        model, optimizer = trained(2)
        name = f"optimizer.{stage}"
        own = shadow(f"{stage}.a", f"{stage}.b", value=stage)
        store.save(1, {name: optimizer, "ema": Stateful(n=1, shadow=own)})

        for new in ((0,), (0, 1), (0, 1, 2, 3)):  # of which ranks the optimizer is new
            given = trained(0 if rank in new else 1)[1]
            average = Stateful(n=0, shadow={key: torch.zeros(2) for key in own})
            report = store.load({name: given, "ema": average})
            assert (report.missing, report.unexpected) == ((), ())
            assert_same(given.state_dict(), optimizer.state_dict())
            assert_same(average.state, {"n": 1, "shadow": own})

        # One of the ranks of a stage has nothing, or a part of what the other one has.
        for names in ((), (f"{stage}.a",)):
            given = own if rank != 1 else shadow(*names)
            average = Stateful(n=0, shadow=dict(given))
            with pytest.raises(cairn.Invalid, match=r"'ema\.shadow' of this rank .* part"):
                store.load({"ema": average}, keys="ema")
            assert average.state["n"] == 0
            store.load({"ema": average}, keys="ema", strict=False)
            assert average.state["n"] == 1 and average.state["shadow"].keys() == given.keys()

        # Nobody has a key, and it is not known whose it is.
        store.save(2, {"ema": Stateful(shadow={**own, "2.a": torch.ones(2)})})
        with pytest.raises(cairn.Invalid, match=r"lacks 'ema\.shadow\.2\.a' of step 2"):
            store.load({"ema": Stateful(shadow=dict(own))})


@with_ranks(4)
def test_a_container_of_optimizers_with_flat_names_is_refused_if_it_lacks_states(rank, path):
    """As torchtitan's, whose state dicts have flat names."""

    def made(stage: int, has_state: bool) -> Stateful:
        state = {f"state.{stage}.w.m": torch.full((2,), stage)} if has_state else {}
        return Stateful(**{f"param_groups.{stage}.w.lr": 0.1}, **state)

    stage = rank // 2
    with cairn.open(path, mode="a") as store:
        store.save(1, {"optimizers": made(stage, True)})
        for new, message in (((), None), ((3,), "part of the keys"), ((2, 3), r"lacks .*\.1\.w")):
            given = made(stage, rank not in new)
            if message is None:
                store.load({"optimizers": given})
                assert_same(given.state, made(stage, True).state)
                continue
            with pytest.raises(cairn.Invalid, match=message):
                store.load({"optimizers": given})


@with_ranks(2)
def test_ranks_that_have_the_same_parts_receive_new_ones(rank, path):
    with cairn.open(path, mode="a") as store:
        losses = [torch.ones(2), torch.ones(3)]
        want = Stateful(shadow=shadow("a", "b"), losses=losses, new={"n": 1})
        store.save(1, {"ema": want})
        for names in (("a",), ("a", "b")):
            losses = [torch.zeros(2)] * rank  # a list is one value
            given = Stateful(shadow=shadow(*names, value=0), losses=losses, new=None)
            store.load({"ema": given})
            assert_same(given.state, want.state)


def other_model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4))


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Muon])
def test_the_optimizer_of_a_model_of_other_shapes_is_refused(store, make, steps):
    def made(model: torch.nn.Module) -> Any:
        return make([each for each in model.parameters() if each.ndim == 2])

    model = new_model()
    optimizer = made(model)
    train(model, optimizer, 0, 2)
    store.save(2, {"optimizer": optimizer})
    model = other_model()
    optimizer = made(model)
    train(model, optimizer, 0, steps)
    with pytest.raises(cairn.Invalid, match=r"'optimizer\.state\.0\..*\[8, 4\] .* \[6, 4\]"):
        store.load({"optimizer": optimizer})
    store.load({"optimizer": optimizer}, strict=False)  # as torch does


class Whitening(torch.optim.Optimizer):
    """As Shampoo or SOAP: of each parameter it has matrices, and tensors of its shape."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any) -> None:
        closure()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                size = parameter.shape[-1]
                self.state[parameter].setdefault("factor", torch.eye(size))
                self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))


def test_the_states_of_an_optimizer_of_others_may_have_other_shapes(store):
    model, optimizer = trained(1, Whitening)
    store.save(1, {"optimizer": optimizer})
    new = Whitening(new_model().parameters())
    store.load({"optimizer": new})
    assert_same(new.state_dict(), optimizer.state_dict())
    new.state[new.param_groups[0]["params"][0]]["factor"] = torch.zeros(2, 2)
    store.load({"optimizer": new})
    assert_same(new.state_dict(), optimizer.state_dict())

    model = other_model()
    new = Whitening(model.parameters())
    train(model, new, 0, 1)
    with pytest.raises(cairn.Invalid, match=r"'optimizer\.state\.0\.momentum'"):
        store.load({"optimizer": new})


def two_groups(model: torch.nn.Module) -> Any:
    return torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[2].parameters()}])


OTHERS = {
    "groups": (two_groups, r"\[2, 2\] .* \[4\] in step 2"),
    "parameters": (lambda m: torch.optim.AdamW(m[0].parameters()), r"\[2\] .* \[4\] in step 2"),
    "SGD": (
        lambda m: torch.optim.SGD(m.parameters(), momentum=0.9),
        "SGD.* another kind.* 'momentum'",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@with_ranks(2)
def test_an_optimizer_that_does_not_fit_changes_nothing(rank, path, name):
    make, message = OTHERS[name]
    with cairn.open(path, mode="a") as store:
        model, optimizer = trained(2)
        store.save(2, {"model": model, "optimizer": optimizer})
        model = new_model()
        before = {key: one.clone() for key, one in model.state_dict().items()}
        optimizer = make(model) if rank else torch.optim.AdamW(model.parameters())
        for strict in (True, False):
            with pytest.raises(cairn.Invalid, match=message):
                store.load({"model": model, "optimizer": optimizer}, strict=strict)
            assert_same(dict(model.state_dict()), before)


def has_meta(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(has_meta, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(has_meta, value))
    return isinstance(value, torch.Tensor) and value.is_meta


@pytest.mark.parametrize("world", ["new", "old"])
def test_a_damaged_part_that_an_object_lacks_is_left_out(store, world):
    torch.manual_seed(1)
    model, optimizer = trained(2)
    for state in optimizer.state.values():
        state["exp_avg"] = torch.randn_like(state["exp_avg"])
    w = torch.randn(3)
    losses = [torch.randn(n + 2) for n in range(3)]
    lazy = {"a": torch.randn(5), "b": [1, 2], "text": "y" * 5000}
    average = Stateful(shadow={"w": w, "v": w + 1}, losses=losses, more={"lazy": lazy}, n=3)
    store.save(2, {"optimizer": optimizer, "ema": average})
    damaged = (optimizer.state_dict()["state"][1]["exp_avg"], w, losses[2], lazy["a"])
    for tensor in damaged:
        damage(Path(store.address), payload(tensor))

    optimizer_given = trained(0 if world == "new" else 1)[1]
    given = Stateful(shadow={}, losses=[torch.zeros(2)], more={}, n=0)
    if world == "old":
        given = Stateful(shadow=shadow("w"), losses=list(losses), more={"lazy": None}, n=0)
    report = store.load({"optimizer": optimizer_given, "ema": given}, skip_damaged=True)

    state = optimizer_given.state_dict()["state"]
    want = optimizer.state_dict()["state"]
    assert not has_meta(state) and not has_meta(given.state)
    assert_same(given.state["shadow"]["v"], w + 1)
    assert given.state["n"] == 3
    skipped = {"optimizer.state.1.exp_avg", "ema.shadow.w", "ema.losses.2", "ema.more.lazy.a"}
    entry = {f"optimizer.state.1.{name}" for name in ("step", "exp_avg_sq")}
    others = {f"ema.more.lazy.{name}" for name in ("b.0", "b.1", "text")}
    if world == "new":
        assert state.keys() == {0, 2, 3}
        assert given.state["shadow"].keys() == {"v"} and given.state["more"] == {}
        assert_same(given.state["losses"], losses[:1])
        skipped |= entry | others | {"ema.losses.1"}
    else:
        assert_same(state[1]["exp_avg_sq"], want[1]["exp_avg_sq"])
        assert_same(given.state["losses"], losses)
    assert report.skipped.keys() >= skipped
    for fqn, error in report.skipped.items():
        assert isinstance(error, cairn.Corrupt) and fqn in str(error)


@pytest.fixture
def two(monkeypatch):
    """Creates a tensor subclass with two inner tensors."""
    monkeypatch.setattr(subclass_registry, "_registered", {})
    cairn.torch.register_tensor_subclass(TwoTensor)
    return lambda value: TwoTensor(torch.full((5,), value + 0.5), torch.full((5,), value + 1.5))


def test_a_tensor_subclass_with_a_damaged_part_is_left_out(store, two):
    store.save(1, {"o": Stateful(part={"two": two(1), "n": 1})})
    damage(Path(store.address), payload(two(1).b))
    old = two(0)
    for part in ({}, {"two": old}, {"two": torch.zeros(2)}):
        given = Stateful(part=dict(part))
        report = store.load({"o": given}, skip_damaged=True)
        # A tensor of another kind is not kept: the step does not have it.
        assert given.state["part"] == {**{k: v for k, v in part.items() if v is old}, "n": 1}
        assert report.skipped.keys() >= {"o.part.two.a", "o.part.two.b"}
    assert_same(old.a, two(0).a)


def test_a_tensor_subclass_may_be_new_or_dropped_or_another_kind_or_loaded_in_part(store, two):
    store.save(1, {"o": Stateful(part={"two": two(1), "n": 1})})
    store.save(2, {"o": Stateful(part={"n": 2})})
    store.save(3, {"o": Stateful(part={"two": {"a": torch.ones(5), "c": 1}, "n": 3})})
    given = Stateful(part={"n": 0})
    for step in (1, 1, 2, 3, 1, 3):
        store.load({"o": given}, step)
        part = dict(given.state["part"])
        assert part.pop("n") == step
        if step == 1:
            assert_same([part["two"].a, part["two"].b], [two(1).a, two(1).b])
        elif step == 2:
            assert part == {}
        else:
            assert_same(part, {"two": {"a": torch.ones(5), "c": 1}})

    for keys in ("o.part.two.a", ["o.part.two", "!o.part.two.b"]):
        given = Stateful(part={"two": two(0)})
        store.load({"o": given}, 1, keys=keys)
        assert_same(
            [given.state["part"]["two"].a, given.state["part"]["two"].b], [two(1).a, two(0).b]
        )
    with pytest.raises(cairn.Invalid, match=r"lacks 'o\.part\.two\."):
        store.load({"o": Stateful(part={})}, 1, keys=keys)


def test_a_tensor_subclass_of_tensor_subclasses_is_new_or_filled(store, two):
    store.save(1, {"o": Stateful(part={"four": TwoTensor(two(1), two(2))})})
    old = TwoTensor(two(0), two(0))
    for part in ({}, {"four": old}):
        given = Stateful(part=part)
        store.load({"o": given})
        four = given.state["part"]["four"]
        inner = [four.a.a, four.a.b, four.b.a, four.b.b]
        assert [one[0].item() for one in inner] == [1.5, 2.5, 2.5, 3.5]
    assert old.a.a[0] == 1.5


class Counted(Stateful):
    """An object whose state is not a dict."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state


@pytest.mark.parametrize("old", [0, torch.zeros(3), torch.zeros(2), [], (1, 2, 3), {"a": 1}, None])
@pytest.mark.parametrize("new", [1, torch.ones(3), [1, torch.ones(2)], (1, 2), {"n": 1}])
def test_a_state_may_have_any_form(store, old, new):
    store.save(1, {"o": Counted(new), "n": 1})
    given = Counted(copy.deepcopy(old))
    store.load({"o": given, "n": 0})
    assert_same(given.state, new)
    given = Counted(copy.deepcopy(old))
    store.load(given, prefix="o")
    assert_same(given.state, new)


def test_a_file_in_memory_remains_one(store):
    store.save(1, {"o": Stateful(short=io.BytesIO(b"1"), long=io.BytesIO(bytes(10_000)))})
    given = Stateful(short=io.BytesIO(), long=io.BytesIO())
    store.load({"o": given})
    assert given.state["short"].read() == b"1" and len(given.state["long"].read()) == 10_000


def test_an_extra_state_that_is_damaged_and_has_another_form_is_refused(store):
    value = torch.randn(5)
    store.save(1, {"model": WithExtraState({"scale": value})})
    damage(Path(store.address), payload(value))
    old = torch.zeros(5)
    store.load({"model": WithExtraState({"scale": old})}, skip_damaged=True)
    assert not old.any()
    with pytest.raises(cairn.Invalid, match=r"keys='!model\._extra_state'"):
        store.load({"model": WithExtraState()}, skip_damaged=True)
    store.load({"model": WithExtraState()}, keys="!model._extra_state")


@pytest.mark.parametrize("given", [{1: 0, "1": 0}, {}])
def test_keys_of_one_text_are_refused(store, given):
    store.save(1, {"o": Stateful(part={1: 3, "1": 4})})
    with pytest.raises(cairn.Invalid, match=r"'o\.part'.* 1 and '1'"):
        store.load({"o": Stateful(part=given)})


@pytest.mark.parametrize("names", [("w", "module.w"), ("module.w", "_orig_mod.w")])
def test_keys_that_differ_by_wrappers_are_refused(store, names):
    state = {name: torch.ones(2) for name in names}
    store.save(1, {"o": Stateful(part=dict(state)), "other": 1})
    for given in ({}, dict(state), {"w": torch.zeros(2)}):
        with pytest.raises(cairn.Invalid, match=f"{names[0]}'.*and.*'.*{names[1]}|{names[1]}"):
            store.load({"o": Stateful(part=given)}, keys="o", strip_wrappers=True)
    store.load({"o": Stateful(part=dict(state))}, keys="o")


def test_parts_that_are_not_selected_keep_their_values(store):
    model, optimizer = trained(2)
    average = Stateful(shadow={"module.w": torch.ones(3)}, n=1, losses=[1, 2], size=torch.Size([1]))
    store.save(2, {"model": model, "optimizer": optimizer, "ema": average})
    given = Stateful(shadow={"w": torch.zeros(2)}, n=0, losses=[3], size=torch.Size([2]))
    new = torch.optim.AdamW(new_model().parameters(), lr=0.5)
    state = {"model": model, "optimizer": new, "ema": given}
    for strip in (False, True):
        store.load(state, keys="model", strip_wrappers=strip)
        assert new.param_groups[0]["lr"] == 0.5 and len(new.state) == 0
        want = {"w": torch.zeros(2)}
        assert_same(given.state, {"shadow": want, "n": 0, "losses": [3], "size": torch.Size([2])})
    store.load(state, keys="ema.n", strip_wrappers=True)
    assert given.state["n"] == 1 and given.state["losses"] == [3]


def test_a_part_may_have_another_form_in_the_step(store):
    long = "x" * 10_000
    store.save(1, {"o": Stateful(text=long, part={"a.b": torch.ones(2), "a.c": 1}, n={"k": 1})})
    given = Stateful(text={}, part={"a": {"b": torch.zeros(2)}}, n=3)
    store.load({"o": given})
    assert given.state["text"] == long and given.state["n"] == {"k": 1}
    part = given.state["part"]
    assert_same(part.pop("a")["b"], torch.ones(2))
    assert part in ({"a.c": 1}, {})
