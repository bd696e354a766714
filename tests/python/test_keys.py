"""Every tree of keys is loaded as it was: only names that would be equal are escaped."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import pytest
import torch
from cairn.dcp import CairnReader
from cairn_testing import assert_same
from hypothesis import given
from hypothesis import strategies as st
from ranks import with_ranks

import cairn

_step_numbers = itertools.count()

# Few characters, so that keys collide.
keys = st.text("a.\\", max_size=3) | st.sampled_from(
    ["1", "True", "1.5", "None", 1, True, 1.5, None]
)
leaves = st.integers(0, 9) | st.integers(0, 9).map(lambda n: torch.full((2,), n))
states = st.recursive(
    leaves,
    lambda below: (
        st.dictionaries(keys, below, max_size=5)
        | st.dictionaries(keys, below, max_size=3).map(OrderedDict)
        | st.lists(below, max_size=3)
    ),
    max_leaves=25,
).filter(lambda state: isinstance(state, dict))

BOTH = {"a.b": torch.zeros(3), "a": {"b": torch.ones(3)}, "c": 5}


def zeroed(state):
    if isinstance(state, dict):
        return type(state)((key, zeroed(value)) for key, value in state.items())
    if isinstance(state, list):
        return [zeroed(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else None


@given(states)
def test_any_tree_of_keys_is_loaded_as_it_was_and_each_name_selects_its_leaf(shared_store, state):
    step = next(_step_numbers)
    shared_store.save(step, state)

    assert_same(shared_store.read(step=step), state)
    target = zeroed(state)
    shared_store.load(target, step)
    assert_same(target, state)
    flat = shared_store.read(step=step, flat=True)
    for name in filter(None, flat):
        one = shared_store.read(name, step=step, flat=True)
        assert_same(one[name], flat[name])
        if isinstance(flat[name], torch.Tensor):
            assert_same(shared_store.read_slice(name, [slice(1, 2)], step=step), flat[name][1:2])


def test_a_part_of_a_state_gets_its_own_leaf_and_never_that_of_another(store):
    store.save(1, BOTH)

    flat, nested = {"a.b": torch.full((3,), 7.0)}, {"a": {"b": torch.full((3,), 7.0)}}
    store.load(flat, strict=False)
    store.load(nested, strict=False)
    assert_same(flat["a.b"], torch.zeros(3))
    assert_same(nested["a"]["b"], torch.ones(3))

    # The keys of another form: which of the two is meant is not known.
    other = {"a": {"b": torch.full((3,), 7.0)}, "a.b": torch.full((3,), 7.0)}
    store.save(2, {"a.b": torch.zeros(3)})
    report = store.load(other, strict=False)
    assert report.missing == ("a.b",)
    assert_same(other["a.b"], torch.zeros(3))
    assert_same(other["a"]["b"], torch.full((3,), 7.0))
    # Where nothing collides, both forms are the same.
    store.load(nested, 2)
    assert_same(nested["a"]["b"], torch.zeros(3))


def test_a_selected_leaf_never_receives_a_value_with_the_same_texts(store):
    store.save(1, BOTH)
    target = {"a.b": torch.full((3,), 7.0)}
    with pytest.raises(cairn.NotFound):
        store.load(target, keys="a.b")
    with pytest.raises(cairn.NotFound, match="no key of the state"):
        store.load(target, keys=["**", "!a\\.b"], strict=False)
    assert_same(target["a.b"], torch.full((3,), 7.0))


def test_a_load_accepts_names_that_would_be_too_long_if_all_keys_were_escaped(store):
    state = {**BOTH, "." * 60000: torch.ones(2)}
    store.save(1, state)
    target = zeroed(state)
    store.load(target)
    assert_same(target, state)


def test_a_rename_keeps_the_kinds_of_the_keys_that_it_does_not_change(store):
    store.save(1, {1: {"w": torch.zeros(1)}, "1": {"w": torch.ones(1)}})
    renamed = store.read(rename={r"^1\.w$": "1.v"})
    assert_same(renamed, {1: {"w": torch.zeros(1)}, "1": {"v": torch.ones(1)}})
    with pytest.raises(cairn.Invalid, match="escapes nothing"):
        store.read(rename={r"^1\.w$": r"1.v\\x"})


def test_incremental_saves_and_asynchronous_ones_keep_escapes(store):
    state = {**BOTH, "a": {"b": torch.ones(3)}, "tied": BOTH["a.b"]}
    store.save(1, state)
    store.save_async(2, state).result()
    state["a"]["b"] = torch.full((3,), 4.0)
    store.save(3, state)
    assert_same(store.read(step=2), {**BOTH, "a": {"b": torch.ones(3)}, "tied": BOTH["a.b"]})
    assert_same(store.read(), state)


def test_what_joins_keys_with_dots_refuses_escaped_ones(store, path):
    store.save(1, BOTH)
    with pytest.raises(cairn.Invalid, match="cannot be named"):
        CairnReader(path).read_metadata()


def test_conversions_keep_escapes_and_rename_by_names(store):
    store.save(1, {**BOTH, "x\\y": {"w": torch.ones(2)}, 1: torch.ones(1), "1": torch.zeros(1)})
    renamed = store.read(rename={"^c$": "d", r"^x\\\\y": r"z\\\\"})
    expected = {**BOTH, "z\\": {"w": torch.ones(2)}, 1: torch.ones(1), "1": torch.zeros(1)}
    expected["d"] = expected.pop("c")
    assert_same(dict(sorted(renamed.items(), key=str)), dict(sorted(expected.items(), key=str)))

    halves = store.read(dtype=torch.float16)
    assert_same(halves["a.b"], torch.zeros(3, dtype=torch.float16))
    assert_same(halves["a"]["b"], torch.ones(3, dtype=torch.float16))


def test_limits_of_keys(store):
    longest = "k" * 65536
    state = {longest: 1, "\ud800": {"\udfff": 2}, "": {"": 3}, "\U0001f600": 4, -(2**70): 5}
    store.save(1, state)
    assert_same(store.read(), state)
    for refused, words in (
        ({longest + "k": 1}, "longer"),
        ({"a\0b": 1}, "NUL"),
        ({b"a": 1}, "bytes"),
    ):
        with pytest.raises(cairn.Invalid, match=words):
            store.save(2, refused)
    with pytest.raises(cairn.Invalid, match="nan"):
        store.save(2, {float("nan"): 1, float("-nan"): 2})


@with_ranks(2)
def test_ranks_that_all_have_the_colliding_keys_save_them(rank, path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {**BOTH, f"own.{rank}": rank, "own": {f"{rank}": rank + 5}})
        state = store.read()
        assert_same(state["a.b"], torch.zeros(3))
        assert_same(state["a"]["b"], torch.ones(3))
        assert [state[f"own.{i}"] for i in (0, 1)] == [0, 1]
        assert state["own"] == {"0": 5, "1": 6}
