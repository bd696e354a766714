"""Tensor subclasses with inner tensors: what is stored, what is rebuilt, and what is refused."""

from __future__ import annotations

import enum
import json
import sys
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import run_python
from ranks import with_ranks
from torch.testing._internal.two_tensor import TwoTensor

import cairn
import cairn.torch
from cairn._tensors import subclass_registry, subclasses
from cairn.dcp import CairnReader, CairnWriter

KEY = "__tensor_subclass__"


class Mode(str, enum.Enum):
    FAST = "fast"
    EXACT = "exact"


@dataclass(frozen=True)
class Rounding:
    mode: Mode
    bits: int = 8


class Limits(NamedTuple):
    low: float
    high: float


class Scaled(torch.Tensor):
    """A matrix of integers with one scale per row; a real wrapper subclass, as torchao's are."""

    @staticmethod
    def __new__(cls, data, scale, context):
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)
        made.data_, made.scale, made.context = data, scale, context
        return made

    def __tensor_flatten__(self):
        return ["data_", "scale"], self.context

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["data_"], inner["scale"], context)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(func)


CONTEXT = {
    "rounding": Rounding(Mode.EXACT),
    "limits": Limits(float("-inf"), 1.5),
    "shape": torch.Size([2, 3]),
    "types": (torch.float8_e4m3fn, torch.device("cpu"), torch.strided, torch.preserve_format),
    "list": [1, None, True, "text", {"nested": (2**70,)}],
}


def scaled(value: int = 1, context=None) -> Scaled:
    data = torch.full((2, 3), value, dtype=torch.int8)
    return Scaled(data, torch.full((2,), float(value)), CONTEXT if context is None else context)


def two(value: float) -> TwoTensor:
    return TwoTensor(torch.full((2, 3), value), torch.full((2, 3), value + 1))


def parts(tensor) -> list[torch.Tensor]:
    return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]


def assert_equal(got, want) -> None:
    assert type(got) is type(want)
    assert got.__tensor_flatten__()[1] == want.__tensor_flatten__()[1]
    for ours, theirs in zip(parts(got), parts(want)):
        if type(theirs) is torch.Tensor:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        else:  # a subclass inside of a subclass
            assert_equal(ours, theirs)


@pytest.fixture(autouse=True)
def nothing_is_registered(monkeypatch):
    monkeypatch.setattr(subclass_registry, "_registered", {})


@pytest.fixture
def allowed(nothing_is_registered):
    """The classes of this file on the allow-list."""
    cairn.torch.register_tensor_subclass(TwoTensor)
    cairn.torch.register_tensor_subclass(Scaled, Mode, Rounding, Limits)


def test_inner_tensors_are_keys_and_the_rest_is_json(store):
    store.save(1, {"layer": {"w": scaled()}, "lr": 0.1})

    found = store.keys()

    assert list(found) == [f"layer.w.{KEY}", "layer.w.data_", "layer.w.scale", "lr"]
    assert found["layer.w.data_"].dtype == "int8"
    description = json.loads(found[f"layer.w.{KEY}"].value)
    assert description["class"] == f"{__name__}:Scaled"
    assert description["size"] == [2, 3]
    assert description["dtype"] == "float32"


def test_read_rebuilds_class_context_and_tensors(store, allowed):
    state = {"a": scaled(3), "b": [two(1.0), 5], "c": {"w": two(2.0)}}
    state["outer"] = TwoTensor(two(1.0), two(3.0))
    store.save(1, state)

    got, flat = store.read(), store.read(flat=True)

    for result in (got, flat):
        assert_equal(result["outer"], state["outer"])
        result = result["a"]
        assert_equal(result, state["a"])
        assert type(result.context["rounding"].mode) is Mode
        assert type(result.context["limits"]) is Limits
    assert_equal(got["b"][0], state["b"][0])
    assert got["b"][1] == 5
    assert list(flat) == ["a", "b.0", "b.1", "c.w", "outer"]
    assert_equal(flat["c.w"], state["c"]["w"])
    assert_equal(store.read("c.w")["c"]["w"], state["c"]["w"])


def test_a_state_may_be_one_subclass(store, allowed):
    store.save(1, two(4.0))

    assert_equal(store.read(), two(4.0))
    assert_equal(store.read(flat=True)[""], two(4.0))


def test_inner_tensors_can_be_read_without_the_class(store):
    state = {"w": two(1.0), "x": 3}
    store.save(1, state)

    assert list(store.read("w.a")["w"]) == ["a"]
    got = store.read(f"!**.{KEY}")
    assert got["x"] == 3
    assert torch.equal(got["w"]["b"], state["w"].b)


def test_load_fills_the_inner_tensors_in_place_without_the_allow_list(store):
    store.save(1, {"w": scaled(5), "t": (two(1.0), 2)})
    target = {"w": scaled(0), "t": (two(0.0), 0)}
    memory = [part.data_ptr() for part in parts(target["w"])]
    kept = target["t"][0]

    store.load(target)

    assert_equal(target["w"], scaled(5))
    assert [part.data_ptr() for part in parts(target["w"])] == memory
    assert target["t"][0] is kept
    assert_equal(kept, two(1.0))
    assert target["t"][1] == 2


def test_load_creates_what_is_on_the_meta_device(store):
    meta = TwoTensor(*(torch.empty(2, 3, device="meta") for _ in range(2)))
    target = {"w": torch.nn.Parameter(meta), "tied": [meta]}
    source = two(6.0)
    store.save(1, {"w": source, "tied": [source]})

    store.load(target)

    assert isinstance(target["w"], torch.nn.Parameter)
    assert target["w"].requires_grad
    assert_equal(target["w"].detach(), two(6.0))
    assert_equal(target["tied"][0], two(6.0))


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (lambda: scaled(0, {**CONTEXT, "list": []}), "context"),
        (lambda: two(0.0), "class"),
    ],
)
def test_a_load_into_another_subclass_is_refused_and_changes_nothing(store, target, what):
    store.save(1, {"w": scaled(5), "x": torch.ones(3)})
    state = {"w": target(), "x": torch.zeros(3)}

    with pytest.raises(cairn.Invalid, match=f"whose {what} is") as caught:
        store.load(state, strict=False)

    assert caught.value.key == "w"
    assert torch.equal(state["x"], torch.zeros(3))


def test_a_key_with_the_name_of_an_inner_tensor_is_escaped(store, allowed):
    store.save(1, {"w": two(1.0), "w.a": torch.zeros(1)})

    assert {"w.a", "w\\.a"} < set(store.keys())
    state = {"w": two(5.0), "w.a": torch.ones(1)}
    store.load(state)
    for found in (store.read(), state):
        assert_equal(found["w"], two(1.0))
        assert torch.equal(found["w.a"], torch.zeros(1))


def test_the_key_of_the_description_is_reserved(store):
    with pytest.raises(cairn.Invalid, match="reserved"):
        store.save(1, {"w": {KEY: "{}", "a": torch.zeros(1)}})
    assert store.steps() == []


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0, [[object()]], torch.ones(1)])
def test_a_context_that_is_not_data_is_refused(store, value):
    with pytest.raises(cairn.Invalid, match="without pickle") as caught:
        store.save(1, {"w": scaled(1, {"x": value})})
    assert caught.value.key == "w"


def test_reading_a_class_that_is_not_allowed_is_refused(store):
    store.save(1, {"w": scaled()})

    with pytest.raises(cairn.Invalid, match="allow-list.*register_tensor_subclass") as caught:
        store.read()

    assert caught.value.key == "w"
    cairn.torch.register_tensor_subclass(Scaled)
    with pytest.raises(cairn.Invalid, match="Rounding.*allow-list"):
        store.read()


def test_safe_globals_of_torch_are_allowed(store):
    store.save(1, {"w": two(1.0)})

    with torch.serialization.safe_globals([TwoTensor]):
        assert_equal(store.read()["w"], two(1.0))


def with_description(monkeypatch, change) -> None:
    """Saves write what `change` makes of a description and its tensors; a str is the text."""
    describe = subclasses.describe

    def changed(value, fqn):
        items = describe(value, fqn)
        document = json.loads(items[KEY])
        result = change(document, items)
        text = json.dumps(document if result is None else result)
        items[KEY] = result if isinstance(result, str) else text
        return items

    monkeypatch.setattr(subclasses, "describe", changed)


def setting(name, value):
    return lambda document, items: document.update({name: value})


def nesting(depth):
    nested = "[" * depth + "]" * depth
    return lambda document, items: items[KEY].replace('"context":null', f'"context":{nested}')


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (setting("class", "os:system"), cairn.Invalid),
        (setting("class", "antigravity:TwoTensor"), cairn.Invalid),
        (setting("class", "torchao.quantization:os"), cairn.Invalid),
        (setting("class", "torch:Tensor"), cairn.Invalid),
        (setting("class", f"{__name__}:Mode"), cairn.Invalid),
        (setting("class", 5), cairn.Corrupt),
        (setting("version", 2), cairn.Invalid),
        (setting("version", "1"), cairn.Corrupt),
        (setting("tensors", ["a", "b", "c"]), cairn.Corrupt),
        (setting("tensors", ["a"]), cairn.Corrupt),
        (setting("tensors", "ab"), cairn.Corrupt),
        (setting("size", [-1]), cairn.Corrupt),
        (setting("size", [2**63]), cairn.Corrupt),
        (setting("context", {"enum": ["antigravity:X", "Y"]}), cairn.Invalid),
        (setting("context", {"enum": [f"{__name__}:Mode", "WRONG"]}), cairn.Corrupt),
        (setting("context", {"enum": [f"{__name__}:Rounding", "FAST"]}), cairn.Invalid),
        (setting("context", {"dataclass": [f"{__name__}:Rounding", [["x", 1]]]}), cairn.Corrupt),
        (setting("context", {"dataclass": [f"{__name__}:Rounding", []]}), cairn.Corrupt),
        (setting("context", {"namedtuple": [f"{__name__}:Limits", [1]]}), cairn.Corrupt),
        (setting("context", {"dtype": "onnx"}), cairn.Corrupt),
        (setting("context", {"dtype": ["float32"]}), cairn.Corrupt),
        (setting("context", {"pickle": "x"}), cairn.Corrupt),
        (setting("context", {"a": 1, "b": 2}), cairn.Corrupt),
        (setting("context", {"dict": [[[], 1]]}), cairn.Corrupt),
        (nesting(40), cairn.Corrupt),
        (nesting(100_000), cairn.Corrupt),
        (lambda document, items: [], cairn.Corrupt),
        (lambda document, items: {}, cairn.Corrupt),
        (lambda document, items: items.__delitem__("a"), cairn.Corrupt),
        (lambda document, items: items.update(a=5), cairn.Corrupt),
    ],
)
def test_hostile_descriptions_are_refused_and_import_nothing(store, monkeypatch, change, error):
    cairn.torch.register_tensor_subclass(TwoTensor, Mode, Rounding, Limits)
    with monkeypatch.context() as patched:
        with_description(patched, change)
        store.save(1, {"w": two(1.0)})
    before = set(sys.modules)

    with pytest.raises(error) as caught:
        store.read()

    assert caught.value.key == "w"
    assert not {name for name in set(sys.modules) - before if not name.startswith("cairn.")}


def test_a_shape_that_does_not_fit_the_inner_tensors_is_corrupt(store, monkeypatch, allowed):
    with monkeypatch.context() as patched:
        with_description(patched, setting("size", [3, 3]))
        store.save(1, {"w": scaled()})

    with pytest.raises(cairn.Corrupt, match="do not fit its shape"):
        store.read()


def test_register_refuses_other_classes():
    with pytest.raises(cairn.Invalid, match="__tensor_flatten__"):
        cairn.torch.register_tensor_subclass(torch.Tensor)
    with pytest.raises(TypeError):
        cairn.torch.register_tensor_subclass("TwoTensor")
    with pytest.raises(TypeError):
        cairn.torch.register_tensor_subclass(TwoTensor, "Mode")


def test_a_new_process_reads_a_step_without_importing_the_class(store, tmp_path):
    store.save(1, {"w": scaled()})
    program = f"""
import sys, cairn
with cairn.open({str(store.address)!r}) as store:
    try:
        store.read()
    except cairn.Invalid as error:
        print(error.key)
print({__name__!r} in sys.modules)
"""
    assert run_python(program).stdout.split() == ["w", "False"]


# torch.distributed.checkpoint


def test_dcp_saves_and_loads_in_both_directions(tmp_path, allowed):
    state = {"m": {"w": two(1.0), "s": torch.ones(2)}, "l": [two(5.0), 3]}
    dcp.save(state, storage_writer=CairnWriter(tmp_path / "dcp"))
    with cairn.open(tmp_path / "native", mode="a") as store:
        store.save(1, state)

    for name in ("dcp", "native"):
        blank = {"m": {"w": two(0.0), "s": torch.zeros(2)}, "l": [two(0.0), 0]}
        dcp.load(blank, storage_reader=CairnReader(tmp_path / name))
        assert_equal(blank["m"]["w"], two(1.0))
        assert_equal(blank["l"][0], two(5.0))
        assert blank["l"][1] == 3
        with cairn.open(tmp_path / name) as store:
            assert_equal(store.read()["m"]["w"], two(1.0))
        with pytest.raises(dcp.CheckpointException, match="is a tensor subclass"):
            blank["m"]["w"] = torch.zeros(2, 3)
            dcp.load(blank, storage_reader=CairnReader(tmp_path / name))


@with_ranks(2)
def test_shards_that_are_subclasses_are_refused_with_a_way_out(rank, path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (2,))
    value = DTensor.from_local(two(1.0), mesh, [Shard(0)], run_check=False)
    with cairn.open(path, mode="a") as store:
        with pytest.raises(cairn.Invalid, match="one key per rank"):
            store.save(1, {"w": value})
        store.save(2, {f"w.{rank}": value.to_local()})
        assert store.steps() == [2]
