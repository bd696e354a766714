"""A load returns what was saved: values, keys, containers, order."""

from __future__ import annotations

import itertools
from collections import Counter, OrderedDict, defaultdict, namedtuple
from enum import Enum

import numpy as np
import pytest
import torch
from cairn_testing import assert_same, random_tensor
from hypothesis import given
from hypothesis import strategies as st

import cairn

_step_numbers = itertools.count()

texts = st.text(st.characters(exclude_categories=()), max_size=12)
plain_values = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.complex_numbers()
    | texts
    | st.binary(max_size=20)
)
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
tensors = st.builds(
    lambda dtype, shape, seed: random_tensor(dtype, *shape, seed=seed),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 5),
)
arrays = st.builds(
    lambda tensor: tensor.numpy(), tensors.filter(lambda t: t.dtype != torch.bfloat16)
)
keys = (
    texts.filter(lambda text: "\0" not in text)
    | st.integers(-(2**70), 2**70)
    | st.booleans()
    | st.none()
    | st.floats(allow_nan=False)
)


def containers(children: st.SearchStrategy) -> st.SearchStrategy:
    lists = st.lists(children, max_size=4)
    dicts = st.dictionaries(keys, children, max_size=4)
    sizes = st.lists(st.integers(0, 2**40), max_size=3)
    return lists | lists.map(tuple) | dicts | dicts.map(OrderedDict) | sizes.map(torch.Size)


states = st.recursive(plain_values | tensors | arrays, containers, max_leaves=12)


def leaf_names(state: object, path: tuple[str, ...] = ()) -> list[str]:
    if isinstance(state, dict):
        texts = ((repr(key) if isinstance(key, float) else str(key), state[key]) for key in state)
        items = [(text.replace("\\", "\\\\"), child) for text, child in texts]
    elif isinstance(state, (list, tuple)):
        items = [(str(i), value) for i, value in enumerate(state)]
    else:
        return [".".join(path)]
    return [name for key, value in items for name in leaf_names(value, (*path, key))]


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory):
    with cairn.open(tmp_path_factory.mktemp("roundtrip") / "store", mode="a") as store:
        yield store


@given(states)
def test_any_state_comes_back_as_it_was(shared_store, state):
    step = next(_step_numbers)
    names = leaf_names(state)

    shared_store.save(step, state)

    assert_same(shared_store.read(step=step), state)
    if len(set(names)) < len(names):  # test_keys.py
        return
    assert list(shared_store.keys(step)) == names
    assert list(shared_store.read(step=step, flat=True)) == names


@given(states)
def test_any_state_can_be_loaded_into_itself(shared_store, state):
    step = next(_step_numbers)
    state = {"root": state}
    shared_store.save(step, state)

    report = shared_store.load(state, step)

    assert (report.missing, report.unexpected) == ((), ())
    assert_same(state, shared_store.read(step=step))


def test_ints_at_every_edge_of_their_size(store):
    # Among them 2**127 - 1, whose two's complement has no bit to spare.
    edges = {sign * 2**k + d for k in range(2001) for sign in (1, -1) for d in (-1, 0, 1)}
    numbers = sorted(edges | {10**400, -(10**400)})
    store.save(1, {"numbers": numbers})
    assert store.read()["numbers"] == numbers
    assert [info.value for info in store.keys().values()] == numbers


def test_an_ordered_dict_keeps_its_own_order_not_that_of_insertion(store):
    state = OrderedDict(a=1, b=2, c=3)
    state.move_to_end("a")
    store.save(1, {"state": state})

    assert_same(store.read(), {"state": OrderedDict(b=2, c=3, a=1)})


def test_deep_nesting_is_kept_and_endless_nesting_refused(store):
    deep = leaf = {}
    for _ in range(900):
        leaf["d"] = {}
        leaf = leaf["d"]
    leaf["x"] = 1
    store.save(1, deep)
    read = store.read()
    for _ in range(900):
        read = read["d"]
    assert read == {"x": 1}

    endless = {"a": []}
    endless["a"].append(endless)
    with pytest.raises(cairn.Invalid, match="contain itself"):
        store.save(2, endless)


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (defaultdict(int, a=1), "dict("),
        (namedtuple("Pair", "a b")(1, 2), "tuple("),
        ({1, 2}, "list("),
        (bytearray(b"x"), "bytes("),
        (torch.nn.Linear(1, 1), "top-level dict"),
        (Colour.RED, ".value"),
        (type("Text", (str,), {})("x"), "str("),
        (object(), "allow_pickle"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_are_refused_with_name_and_way_out(store, value, way_out):
    with pytest.raises(cairn.Invalid) as caught:
        store.save(1, {"outer": {"inner": value}})
    assert caught.value.key == "outer.inner"
    assert "outer.inner" in str(caught.value)
    assert way_out in str(caught.value)


def test_a_dict_of_another_type_is_refused_with_a_module_in_it(store):
    with pytest.raises(cairn.Invalid, match=r"defaultdict.* dict\("):
        store.save(1, defaultdict(int, model=torch.nn.Linear(1, 1)))


def test_texts_of_numpy_are_saved_as_str_and_bytes(store):
    state = {np.str_("name"): np.str_("a.b"), "raw": [np.bytes_(b"x")], "n": (np.str_(""),)}
    store.save(1, state)
    assert_same(store.read(), {"name": "a.b", "raw": [b"x"], "n": ("",)})
    store.load(state)
    assert_same(state, {np.str_("name"): "a.b", "raw": [b"x"], "n": ("",)})


def test_all_refusals_of_a_state_are_one_error(store):
    state = {"set": {1}, "sparse": torch.ones(2).to_sparse(), "ok": 1, "keys": {(1, 2): 3}}
    with pytest.raises(cairn.Invalid, match="3 keys are refused: .*'keys'.*'set'.*'sparse'"):
        store.save(1, state)
    many = {f"set{i}": {i} for i in range(12)}
    message = r"12 keys are refused: .*'set9' [^;]*; \.\.\."
    with pytest.raises(cairn.Invalid, match=message) as refused:
        store.save(1, many)
    assert refused.value.key == "set0"
    assert store.steps() == []


def test_a_module_below_the_top_level_is_named_when_it_is_not_loaded(store):
    store.save(1, {"nets.actor": torch.nn.Linear(1, 1), "n": 1})

    with pytest.raises(cairn.Invalid, match="only loaded at the top level") as caught:
        store.load({"nets": {"actor": torch.nn.Linear(1, 1)}, "n": 0}, strict=False)
    assert caught.value.key == "nets.actor"
    actor = torch.nn.Linear(1, 1)
    store.load({"nets.actor": actor, "n": 0})  # what the error proposes
    assert torch.equal(actor.weight, store.read()["nets.actor"]["weight"])


def test_a_scheduler_with_a_counter_comes_back_whole(store):
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 60, 60])
    store.save(1, {"scheduler": scheduler.state_dict()})

    back = store.read()["scheduler"]
    assert type(back["milestones"]) is Counter
    assert back == scheduler.state_dict()


def test_pickle_needs_permission_on_both_sides(store):
    state = {"steps": {30, 60}, "when": defaultdict(list, a=[1])}
    store.save(1, state, allow_pickle=True)

    for read in (lambda: store.read(), lambda: store.load({"steps": None, "when": None})):
        with pytest.raises(cairn.Invalid, match="allow_pickle") as caught:
            read()
        assert caught.value.key == "steps"
    info = store.keys()["steps"]
    assert (info.kind, info.type, info.value) == ("value", "pickle", None)

    assert_same(store.read(allow_pickle=True)["steps"], state["steps"])
    target = {"steps": None, "when": None}
    store.load(target, allow_pickle=True)
    assert target["when"]["new"] == []


def test_a_pickle_never_holds_tensors(store):
    with pytest.raises(cairn.Invalid, match="an object that contains tensors") as caught:
        store.save(1, {"d": defaultdict(list, a=[torch.zeros(2)])}, allow_pickle=True)
    assert caught.value.key == "d"


def test_what_keys_tells(store):
    state = {
        "t": torch.zeros(2, 3, dtype=torch.bfloat16),
        "a": np.zeros((4,), np.int16),
        "s": np.float32(1),
        "v": "text",
    }
    store.save(1, state)
    keys = store.keys()
    assert list(keys) == ["t", "a", "s", "v"]
    found = {fqn: (i.kind, i.type, i.dtype, i.shape, i.nbytes, i.value) for fqn, i in keys.items()}
    assert found == {
        "t": ("tensor", "torch.Tensor", "bfloat16", (2, 3), 12, None),
        "a": ("ndarray", "numpy.ndarray", "int16", (4,), 8, None),
        "s": ("scalar", "numpy.generic", "float32", (), 4, None),
        "v": ("value", "str", None, None, 0, "text"),
    }
