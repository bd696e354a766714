"""Asynchronous saves that state what is unchanged: a save of the same state as before describes no
tensor again, and notices every change of a state that a save without a memory would notice."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict

import pytest
import torch
from cairn_testing import assert_same

import cairn
from cairn import _cairn
from cairn._save import save as saves

UNCHANGED = cairn.SaveTuning(unchanged=["**", "!trained.**"])


def new_state() -> dict:
    return {
        "frozen": {"w": torch.arange(12.0).reshape(3, 4), "b": torch.arange(6, dtype=torch.uint8)},
        "ordered": OrderedDict(x=torch.ones(3), y=torch.nn.Parameter(torch.ones(3))),
        "list": [torch.zeros(2), torch.zeros(2)[:0]],
        "flags": {True: "a"},
        "trained": {0: torch.zeros(5), "view": torch.zeros(4, 4)[:, 1]},
        "lr": 0.1,
    }


@pytest.fixture
def described(monkeypatch):
    """One element for each state that was described completely."""
    calls: list[object] = []
    flatten = _cairn.flatten
    monkeypatch.setattr(_cairn, "flatten", lambda *args: calls.append(args) or flatten(*args))
    return calls


def resolved(value):
    return value.resolve_neg() if isinstance(value, torch.Tensor) else value


def assert_saved(store, step, state):
    read = store.read(step=step)
    if "trained" in state:
        state["trained"] = {key: resolved(value) for key, value in state["trained"].items()}
    assert_same(read, state)
    assert list(read) == list(state)


def save(store, step, state, tuning=UNCHANGED):
    return store.save_async(step, state, tuning=tuning).result()


@pytest.fixture
def known(store, described):
    """A state that has been saved twice."""
    state = new_state()
    for step in (1, 2):
        save(store, step, state)
    assert len(described) == 1
    return state


def test_a_known_state_is_saved_with_what_has_changed(store, known, described):
    known["trained"][0].fill_(7)
    known["trained"]["view"].fill_(8)
    known["lr"] = 0.2
    report = save(store, 3, dict(known))
    assert report.chunks_reused == report.chunks - 2
    assert_same(store.read(step=3), known)
    assert len(described) == 1


def test_equal_keys_and_new_tensors_over_the_same_memory_are_known(store, known, described):
    again = {"".join(key): value for key, value in known.items()}
    again["frozen"] = {name[:1] + "": value.detach() for name, value in known["frozen"].items()}
    save(store, 3, again)
    assert len(described) == 1


def _swap(state, name="w", *, give):
    state["frozen"][name].data = give(state["frozen"][name])


# All of them contradict the statement, or are not about tensors that it names.
CHANGES = {
    "shape": lambda s: s["frozen"]["w"].resize_(2, 4),
    "dimensions": lambda s: s["frozen"]["w"].unsqueeze_(0),
    "strides": lambda s: s["frozen"]["w"].t_(),
    "dtype": lambda s: _swap(s, give=lambda w: w.view(torch.int32)),
    "dtype of a byte": lambda s: _swap(s, "b", give=lambda b: b.view(torch.int8)),
    "half": lambda s: _swap(s, give=lambda w: w.half()),
    "set_": lambda s: s["frozen"]["b"].set_(torch.zeros(7, dtype=torch.uint8)),
    "numpy": lambda s: s["frozen"].update(w=s["frozen"]["w"].numpy()),
    "value": lambda s: s.update(frozen=1),
    "tensor instead of a value": lambda s: s.update(lr=torch.tensor(0.1)),
    "kind of a container": lambda s: s.update(list=tuple(s["list"])),
    "order": lambda s: s.update(lr=s.pop("lr"), frozen=s.pop("frozen")),
    "order of an OrderedDict": lambda s: s["ordered"].move_to_end("x"),
    "type of a key": lambda s: s["trained"].update({"0": s["trained"].pop(0)}),
    "int as key": lambda s: s.update(flags={1: "a"}),
    "bool as key": lambda s: s.update(trained={False: s["trained"][0], "view": s["lr"]}),
    "name of a key": lambda s: s["trained"].update(new=s["trained"].pop("view")),
    "new key": lambda s: s.update(new=torch.ones(1)),
    "new element": lambda s: s["list"].append(None),
    "no key": lambda s: s.pop("list"),
    "no last key": lambda s: s.pop("lr"),
    "trained": lambda s: s["trained"].update({0: torch.ones(5)}),
    "negated": lambda s: s["trained"].update(view=torch._neg_view(s["trained"]["view"].fill_(2))),
    "negated in place": lambda s: setattr(
        s["trained"][0], "data", torch._neg_view(s["trained"][0].fill_(2))
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_another_state_is_saved_as_it_is(store, known, described, change):
    CHANGES[change](known)
    save(store, 3, known)
    assert len(described) == 2
    assert_saved(store, 3, known)


def test_a_stated_tensor_in_other_memory_is_not_read(store, known):
    """As without a memory of the state: its shape and dtype are as stated."""
    _swap(known, give=lambda w: w.clone())
    assert save(store, 3, known).written_bytes == 0


@pytest.mark.parametrize("give", [lambda w: w.add_(1), torch._neg_view], ids=["new", "negated"])
def test_a_wrong_statement_is_found_in_the_chunk_that_is_compared(store, known, give):
    """The steps compare all chunks in turn, of 7 stated tensors with elements."""
    _swap(known, give=give)
    found = 0
    for step in range(3, 10):
        try:
            save(store, step, known)
        except cairn.Invalid as error:
            found += 1
            assert error.key == "frozen.w" and "`unchanged` states" in str(error)
    assert found > 0


def test_without_its_base_a_known_state_is_saved_completely(store, known, described):
    store.save(5, {"other": 1})
    described.clear()
    for step, tuning in [(6, UNCHANGED), (7, cairn.SaveTuning(incremental=False, unchanged="**"))]:
        known["frozen"]["w"] += 1
        save(store, step, known, tuning)
        assert_same(store.read(step=step), known)
    assert described == []


@pytest.mark.parametrize("change", ["data", "negated"])
def test_memory_that_another_thread_replaces_before_it_is_read(
    store, known, described, monkeypatch, change
):
    prepare = saves.prepare_save

    def prepare_then_swap(*args):
        prepared = prepare(*args)
        monkeypatch.setattr(saves, "prepare_save", prepare)
        tensor = known["trained"][0]
        tensor.data = torch.ones(5) if change == "data" else torch._neg_view(tensor.fill_(2))
        return prepared

    monkeypatch.setattr(saves, "prepare_save", prepare_then_swap)
    save(store, 3, known)
    assert_saved(store, 3, known)
    assert len(described) == 2


def test_a_store_keeps_no_tensor_of_a_known_state(store, known):
    save(store, 3, known)
    memory = [weakref.ref(known["frozen"]["w"]), weakref.ref(known["ordered"])]
    known.clear()
    gc.collect()
    assert [one() for one in memory] == [None, None]


def test_keys_and_prefixes_select_of_a_known_state(store, known):
    store.save_async(3, known, keys="trained", tuning=UNCHANGED).result()
    assert set(store.keys(3)) == {"trained.0", "trained.view"}
    store.save_async(4, known, prefix="p", tuning=UNCHANGED).result()
    assert_same(store.read(step=4), {"p": known})
