"""Conversion on the way from a step to tensors: names, shapes, dtypes, block-scaled matrices."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch
from cairn_testing import (
    assert_same,
    assert_same_numbers,
    flip_byte,
    more_memory,
    segment_files,
    shares_storage,
)
from ranks import run_on_ranks, with_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import cairn
import cairn.convert

HALVES = [torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
WIDE = [torch.float32, torch.float64]


def sources_of_all_numbers() -> dict[str, torch.Tensor]:
    """Every number of the 8-bit and 16-bit formats, and numbers around every rounding decision of
    float32 and float64."""
    generator = torch.Generator().manual_seed(7)
    states = {}
    for dtype in HALVES:
        states[str(dtype)] = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    for dtype in FLOAT8:
        states[str(dtype)] = torch.arange(256, dtype=torch.uint8).view(dtype)
    # All upper halves of float32, with the lower halves that decide how each is rounded.
    upper = torch.arange(1 << 16, dtype=torch.int64) << 16
    lower = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    lower += torch.randint(0, 1 << 16, (5,), generator=generator).tolist()
    singles = torch.cat([upper + low for low in lower])
    singles = singles.where(singles < 1 << 31, singles - (1 << 32)).int().view(torch.float32)
    states["torch.float32"] = singles
    noise = torch.randint(-(1 << 30), 1 << 30, (singles.numel(),), generator=generator)
    doubles = (singles.double().view(torch.int64) + noise).view(torch.float64)
    random = torch.randint(-(1 << 62), 1 << 62, (200_000,), generator=generator) * 2
    states["torch.float64"] = torch.cat([singles.double(), doubles, random.view(torch.float64)])
    return states


@pytest.mark.parametrize("target", WIDE + HALVES)
def test_casts_equal_those_of_torch_for_every_number(store, target):
    states = sources_of_all_numbers()
    store.save(1, states)

    got = store.read(dtype=target, flat=True)

    for name, source in states.items():
        if source.dtype == torch.float64:  # torch of aarch64 rounds it to float16 only once
            source = source.to(torch.promote_types(torch.float32, target))
        assert_same_numbers(got[name], source.to(target))


def test_a_load_casts_to_the_dtypes_of_the_state_if_asked(store):
    source = {"w": torch.randn(300, 70), "h": torch.randn(40).half(), "n": torch.arange(4)}
    store.save(1, {**source, "lr": 0.1})
    strided = torch.zeros(70, 600, dtype=torch.bfloat16)
    target = {
        "w": strided.t()[::2],
        "h": np.zeros(40, dtype=np.float64),
        "n": torch.zeros(4, dtype=torch.int64),
        "lr": 0.0,
    }

    with pytest.raises(cairn.Invalid, match="'w' is float32"):
        store.load(target)
    assert not strided.any()
    report = store.load(target, cast=True)

    assert report.step == 1
    assert torch.equal(target["w"], source["w"].bfloat16())
    assert not strided.t()[1::2].any()
    assert np.array_equal(target["h"], source["h"].double().numpy())
    assert target["lr"] == 0.1
    with pytest.raises(cairn.Invalid, match="no conversion from int64 to float32"):
        store.load({**target, "n": torch.zeros(4)}, cast=True)


def memory_of_a_cast(rank, path) -> int:
    tensor = {}
    with cairn.open(path) as store:
        more = more_memory(lambda: tensor.update(store.read("w", dtype=torch.bfloat16)))
    assert tensor["w"].dtype == torch.bfloat16 and tensor["w"][-1] == 1
    return more


def test_a_cast_needs_no_memory_for_the_stored_tensor(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": torch.ones(64 << 20)})  # 256 MiB

    [more] = run_on_ranks(memory_of_a_cast, path, world_size=1, has_group=False)

    assert 128 << 20 <= more < (128 + 64) << 20, "the target has 128 MiB"


def rope(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The layout of Hugging Face from that of Meta."""
    rows, columns = weight.shape
    split = weight.view(heads, rows // heads // 2, 2, columns)
    return split.transpose(1, 2).reshape(rows, columns)


RULES = [
    {"rearrange": r"a\.wq$", "factors": [4, -1, 2], "order": [0, 2, 1]},
    {"concat": ["gate$", "up"], "to": "gate_up"},
    {"stack": r"experts\.(\d+)\.w", "to": "experts.w", "dim": 1},
    {"permute": r"experts\.w", "dims": [2, 1, 0]},
    {"split": "qkv", "into": ["q", "k", "v"], "sizes": [6, 2, 2]},
    {"unstack": r"kv\.cache", "to": "cache.{i}", "dim": -1},
    {"rename": r"^model\.", "to": ""},
]


def source_state() -> dict:
    return {
        "model": {
            "wq": torch.randn(1024, 700),  # several chunks
            "a.wq": torch.randn(32, 16),
            "gate": torch.randn(5, 16),
            "up": torch.randn(7, 16),
            "qkv": torch.randn(10, 3),
            "kv.cache": torch.randn(2, 3, 4),
            "experts": [{"w": torch.randn(600, 500)} for _ in range(3)],
            "empty": torch.zeros(0, 4),
        },
        "step": 7,
    }


def converted_state(state: dict) -> dict[str, torch.Tensor]:
    model = state["model"]
    q, k, v = model["qkv"].split([6, 2, 2])
    return {
        "wq": model["wq"],
        "a.wq": rope(model["a.wq"], 4),
        "gate_up": torch.cat([model["gate"], model["up"]]),
        "q": q,
        "k": k,
        "v": v,
        **{f"cache.{i}": model["kv.cache"][..., i] for i in range(4)},
        "experts.w": torch.stack([each["w"] for each in model["experts"]], 1).permute(2, 1, 0),
        "empty": model["empty"],
    }


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_rules_change_names_and_shapes(store, dtype):
    state = source_state()
    store.save(1, state)
    want = converted_state(state)

    got = store.read(rename=RULES, dtype=dtype, flat=True)

    assert got.pop("step") == 7
    assert got.keys() == want.keys()
    for fqn, tensor in want.items():
        assert torch.equal(got[fqn], tensor if dtype is None else tensor.to(dtype)), fqn


def test_a_load_fills_strided_views_by_rules(store):
    state = source_state()
    store.save(1, state)
    want = converted_state(state)
    target = {fqn: torch.zeros(*tensor.shape, 2)[..., 0] for fqn, tensor in want.items()}
    meta = torch.empty_like(want["experts.w"], device="meta")

    report = store.load({**target, "step": 0}, rename=RULES)
    other = {"experts.w": meta}
    store.load(other, rename=RULES, strict=False)

    assert report.missing == report.unexpected == ()
    for fqn, tensor in want.items():
        assert torch.equal(target[fqn], tensor), fqn
    assert torch.equal(other["experts.w"], want["experts.w"])


def test_missing_and_unexpected_keys_have_their_new_names(store):
    store.save(1, {"old.a": torch.ones(2), "old.b": torch.ones(2)})
    target = {"new.a": torch.zeros(2), "new.c": torch.zeros(2)}

    with pytest.raises(cairn.NotFound, match=r"new\.c"):
        store.load(target, rename={"^old": "new"})
    report = store.load(target, rename={"^old": "new"}, strict=False)

    assert report.missing == ("new.c",)
    assert report.unexpected == ("new.b",)
    assert target["new.a"].tolist() == [1, 1]
    store.load({"new.a": torch.zeros(2)}, rename={"^old": "new"}, keys="new.a")
    store.load({"a": torch.zeros(2), "b": torch.zeros(2)}, rename={"^old": "x"}, prefix="x")


def test_patterns_select_new_names(store):
    store.save(1, {"a": {"x": torch.ones(1), "y": torch.ones(1)}, "b": torch.ones(1)})

    assert store.read("c", rename={"^a": "c"}, flat=True).keys() == {"c.x", "c.y"}
    with pytest.raises(cairn.NotFound):
        store.read("a", rename={"^a": "c"})


def test_nesting_follows_the_style_of_the_source(store):
    state = {
        "model": {"block.weight": torch.ones(1), "block.bias": torch.ones(2)},
        "nested": {"in": {"w": torch.ones(3)}},
        "list": [torch.ones(4), torch.ones(5), {}],
        "step": 3,
    }
    store.save(1, state)

    got = store.read(
        rename={r"block\.weight": "a.b", r"nested\.in": "x.y", r"^list\.0": "list.first"}
    )

    assert_same(
        got,
        {
            "model": {"a.b": torch.ones(1), "block.bias": torch.ones(2)},
            "x": {"y": {"w": torch.ones(3)}},
            "list": {"first": torch.ones(4), 1: torch.ones(5), 2: {}},
            "step": 3,
        },
    )
    assert_same(store.read(rename={}), state)
    with pytest.raises(cairn.Invalid, match="contain others"):
        store.read(rename={r"^nested\.in\.w": "step.x"})


def test_tied_weights_remain_tied(store):
    shared = torch.randn(6, 4)
    state = {"embed": shared, "head": shared, "part": shared[1:3]}
    store.save(1, state)

    got = store.read(rename={"head": "lm_head"}, dtype=torch.bfloat16)

    assert shares_storage(got["embed"], got["lm_head"])
    assert shares_storage(got["embed"], got["part"])
    assert torch.equal(got["part"], shared[1:3].bfloat16())
    tied = torch.zeros(6, 4, dtype=torch.float64)
    store.load({"e": tied, "h": tied}, rename={"embed": "e", "head": "h"}, cast=True, strict=False)
    assert torch.equal(tied, shared.double())
    untied = store.read(rename=[cairn.convert.permute("head", (1, 0))])
    assert torch.equal(untied["head"], shared.t())


def test_renames_replace_the_first_match_and_may_exchange_names(store):
    store.save(1, {"a": torch.zeros(1), "b": torch.zeros(2), "layers.3.wq.wq": torch.zeros(3)})

    got = store.read(rename={"^a$": "b", "^b$": "a", r"(\d+)\.wq": r"\1.q"}, flat=True)

    assert {name: len(tensor) for name, tensor in got.items()} == {
        "b": 1,
        "a": 2,
        "layers.3.q.wq": 3,
    }


def test_positions_of_a_stack_are_numbers(store):
    parts = {f"e.{i}.w": torch.full((2, 3), float(i)) for i in reversed(range(12))}
    store.save(1, parts)
    stack = cairn.convert.stack(r"e\.(\d+)\.w", "e.w", dim=1)

    stacked = store.read(rename=[stack], flat=True)["e.w"]
    back = store.read(rename=[stack, cairn.convert.unstack(r"e\.w", "f.{i}.w", dim=-2)], flat=True)

    assert torch.equal(stacked, torch.stack([parts[f"e.{i}.w"] for i in range(12)], 1))
    assert back.keys() == {f"f.{i}.w" for i in range(12)}
    assert back["f.11.w"].tolist() == parts["e.11.w"].tolist()
    with pytest.raises(cairn.Invalid, match="position 7 is missing"):
        store.read(rename=[cairn.convert.drop(r"e\.7\.w"), stack])


def random_rules(choose: random.Random, x: torch.Tensor) -> tuple[list[dict], torch.Tensor]:
    """Rules for the tensor "x", and what torch makes of it."""
    rules: list[dict] = []
    for _ in range(choose.randint(1, 6)):
        dim = choose.randrange(x.dim())
        size = x.shape[dim]
        kind = choose.choice(["permute", "rearrange", "rearrange", "split"])
        if kind == "permute":
            dims = choose.sample(range(x.dim()), x.dim())
            rules.append({"permute": "x", "dims": dims})
            x = x.permute(dims)
        elif kind == "rearrange":
            factor = choose.choice([n for n in range(1, size + 1) if size % n == 0])
            other = choose.choice([n for n in range(1, factor + 1) if factor % n == 0])
            factors, order = [other, factor // other, size // factor], choose.sample(range(3), 3)
            rules.append({"rearrange": "x", "dim": dim, "factors": factors, "order": order})
            dims = [*range(dim), *(dim + each for each in order), *range(dim + 3, x.dim() + 2)]
            x = x.unflatten(dim, factors).permute(dims).flatten(dim, dim + 2)
        elif size > 1:  # parts that factors do not fit, in the other order
            at = choose.randrange(1, size)
            rules.append({"split": "x", "into": ["y", "x"], "dim": dim, "sizes": [at, size - at]})
            rules.append({"concat": ["^x$", "y"], "to": "x", "dim": dim})
            x = x.roll(-at, dim)
    return rules, x


@pytest.mark.parametrize("seed", range(30))
def test_random_rules_move_elements_as_torch_does(store, seed):
    choose = random.Random(seed)
    source = torch.randn([choose.randint(1, 13) for _ in range(choose.randint(1, 3))])
    store.save(1, {"x": source})
    rules, want = random_rules(choose, source)

    got = store.read(rename=rules, flat=True)

    assert torch.equal(got["x"], want), rules
    strided = torch.zeros(*want.shape, 2, dtype=torch.float64)
    store.load({"x": strided[..., 1]}, rename=rules, cast=True)
    assert torch.equal(strided[..., 1], want.double())
    assert not strided[..., 0].any()


def test_what_does_not_fit_in_a_buffer_is_moved_in_blocks(store):
    source = torch.arange(6 << 20, dtype=torch.int32).reshape(3, -1)
    store.save(1, {"x": source, "rows": source.reshape(-1, 3)})
    wide = [2, source.shape[1] // 2]
    rules = [
        cairn.convert.rearrange("x", wide, (1, 0), dim=1),
        cairn.convert.rearrange("rows", wide, (1, 0)),
        cairn.convert.split("rows", ["few", "rest"], sizes=(5, source.shape[1] - 5)),
    ]

    got = store.read(rename=rules)

    assert torch.equal(got["x"], source.unflatten(1, wide).transpose(1, 2).flatten(1))
    rows = source.reshape(*wide, 3).transpose(0, 1).reshape(-1, 3)
    assert torch.equal(got["few"], rows[:5])
    assert torch.equal(got["rest"], rows[5:])


MALFORMED = [
    (7, "a rule is a dict"),
    ({"rename": "a", "to": r"\1"}, r"\\1"),
    ({"renam": "a", "to": "x"}, "one of these fields"),
    ({"rename": "a", "to": "x", "dim": 1}, "no field 'dim'"),
    ({"split": "a", "into": []}, "no part"),
    ({"split": "a", "into": ["x", "y"], "sizes": [4, 5]}, r"9 in total.*\[4, 2\]"),
    ({"split": "a", "into": ["x", "y"], "dim": 2}, "no dimension 2"),
    ({"split": "a", "into": ["x"], "dim": 1e300}, "integer"),
    ({"split": "a", "into": ["x"], "dim": 1 << 64}, "integer"),
    ({"split": "step", "into": ["x", "y"]}, "plain value"),
    ({"stack": "a", "to": "x"}, "needs a group"),
    ({"unstack": "a", "to": "x"}, "{i}"),
    ({"permute": "a", "dims": [0, 0]}, "permutation"),
    ({"permute": "a", "dims": [0, 2, 1]}, "3 dimensions"),
    ({"rearrange": "a", "factors": [-1, -1], "order": [1, 0]}, "more than one -1"),
    ({"rearrange": "a", "factors": [3, -1], "order": [1, 0]}, "product"),
    ({"cast": "a", "dtype": "float7"}, "float7"),
    ({"cast": "a", "dtype": "int8"}, "no conversion from float32 to int8"),
    ({"rename": {"a": "x", "^a": "y"}}, r"'a' and '\^a'.*key a"),
    ({"concat": ["^a$", "b"], "to": "c"}, "'a'"),
    ({"dequantize": "_scale", "weight": ""}, r"\[1, 1\].*w_scale"),
    ({"rename": {"^a$": "b"}}, "'a' and 'b' would have the same name"),
    ({"rename": {"(": "x"}}, "missing"),
    ({"rename": object()}, "texts, numbers"),
    ({"concat": ["a", "zz"], "to": "c"}, "no 'zz'"),
    ({"concat": ["^a$", "b"], "to": "c", "dim": 2}, r"shape \[4, 2\] has no dimension 2"),
    ({"concat": ["^a$", "n"], "to": "c"}, r"int64 \[3\].*float32 \[4, 2\]"),
    ({"permute": "step", "dims": [0]}, "plain value"),
]


@pytest.mark.parametrize(("rule", "message"), MALFORMED)
def test_rules_that_are_malformed_or_do_not_fit_are_refused(store, rule, message):
    store.save(1, {
        "a": torch.zeros(4, 2), "b": torch.zeros(4, 3), "n": torch.zeros(3).long(), "step": 1,
        "w": torch.zeros(2, 2).to(torch.float8_e4m3fn), "w_scale": torch.zeros(2, 1),
    })  # fmt: skip

    with pytest.raises(cairn.Invalid, match=message) as raised:
        store.read(rename=[rule])

    assert str(raised.value).startswith("rule 1 (")
    with pytest.raises(cairn.Invalid, match="list of rules"):
        store.read(rename="a")


def test_rules_that_are_nested_deeply_or_take_long_do_no_harm(store, tmp_path):
    # Neither an error message nor a parser may recurse until the stack ends.
    nested: list = []
    for _ in range(300_000):
        nested = [nested]
    store.save(1, {"a" * 60_000: torch.zeros(1)})
    for rule in ({"permute": "a", "dims": nested}, {"rename": nested}, nested):
        with pytest.raises(cairn.Invalid, match="rule 1"):
            store.read(rename=[rule])
    (tmp_path / "rules.json").write_text("[" * 300_000)
    with pytest.raises(cairn.Invalid, match="list of rules|not JSON"):
        cairn.convert.load_rules(tmp_path / "rules.json")
    # An expression that would take exponential time with backtracking.
    assert store.read(rename={"(a*)*b$": "x"}, flat=True).keys() == {"a" * 60_000}


def test_what_cannot_be_combined_with_a_conversion_is_refused(store):
    store.save(1, {"a": torch.zeros(2), "array": np.zeros(2, dtype=np.float32)})

    with pytest.raises(cairn.Invalid, match="mmap"):
        store.read(rename={"a": "b"}, mmap=True)
    with pytest.raises(cairn.Invalid, match="skip_damaged"):
        store.load({}, rename={"a": "b"}, skip_damaged=True, strict=False)
    with pytest.raises(cairn.Invalid, match="bfloat17"):
        store.read(dtype="bfloat17")
    with pytest.raises(cairn.Invalid, match="no conversion from float32 to int8"):
        store.read(dtype=torch.int8)
    with pytest.raises(cairn.Invalid, match="numpy has no dtype bfloat16"):
        store.read(dtype=torch.bfloat16)
    assert store.read(dtype="float64")["array"].dtype == np.float64


def test_a_damaged_chunk_is_reported_under_its_stored_name(store, path):
    store.save(1, {"old": torch.randn(1 << 20)})
    flip_byte(segment_files(path)[0], 1 << 20)

    with cairn.open(path) as store, pytest.raises(cairn.Corrupt, match="old"):
        store.read(rename={"old": "new"}, dtype=torch.bfloat16)


def quantize(weight: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = (-(-size // 128) for size in weight.shape)
    scale = torch.rand(rows, columns) + 0.01
    whole = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (weight / whole[: weight.shape[0], : weight.shape[1]]).to(dtype), scale


@pytest.mark.parametrize("target", [torch.float32, *HALVES])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_dequantization_equals_that_of_the_reader_of_torch(store, tmp_path, dtype, target):
    safetensors = pytest.importorskip("safetensors.torch")
    from torch.distributed.checkpoint import load as dcp_load
    from torch.distributed.checkpoint.quantized_hf_storage import QuantizedHuggingFaceStorageReader

    state = {"norm.weight": torch.randn(300)}
    for name, shape in {"a": (300, 517), "b": (128, 128), "c": (1, 2000)}.items():
        quantized, scale = quantize(torch.randn(shape), dtype)
        state |= {f"{name}.weight": quantized, f"{name}.weight_scale_inv": scale}
    file = "model-00001-of-00001.safetensors"
    safetensors.save_file(state, tmp_path / file)
    index = {"metadata": {}, "weight_map": dict.fromkeys(state, file)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    want = {
        fqn: torch.zeros_like(tensor, dtype=target)
        for fqn, tensor in state.items()
        if not fqn.endswith("_inv") and fqn != "norm.weight"
    }
    dcp_load(
        want, storage_reader=QuantizedHuggingFaceStorageReader(str(tmp_path), target_dtype=target)
    )
    store.save(1, state)

    got = store.read(rename=[cairn.convert.dequantize(target)], flat=True)

    assert got.keys() == {*want, "norm.weight"}
    for fqn, tensor in want.items():
        assert_same_numbers(got[fqn], tensor)
    # In one step with other rules, into strided memory.
    rules = [
        cairn.convert.dequantize(target),
        cairn.convert.permute("a.weight", (1, 0)),
        cairn.convert.split("b.weight", ["b.upper", "b.lower"], sizes=(27, 101)),
    ]
    parts = store.read(rename=rules, flat=True)
    assert_same_numbers(parts["a.weight"], want["a.weight"].t())
    assert_same_numbers(parts["b.lower"], want["b.weight"][27:])


@with_ranks(2)
def test_ranks_load_their_parts_of_converted_tensors(rank: int, path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(3)
    state = source_state()
    with cairn.open(path, mode="a") as store:
        want = converted_state(state)
        for dim, fqn in enumerate(("wq", "a.wq")):
            state["model"][fqn] = distribute_tensor(state["model"][fqn], mesh, [Shard(dim)])
        store.save(1, state)
        placements = {"experts.w": [Shard(1)], "gate_up": [Shard(0)], "wq": [Shard(1)]}
        target = {
            fqn: distribute_tensor(
                torch.zeros_like(tensor, dtype=torch.bfloat16),
                mesh,
                placements.get(fqn, [Shard(0)] if len(tensor) > 2 else [Replicate()]),
            )
            for fqn, tensor in want.items()
        }
        for read_once in (False, True):
            for each in target.values():
                each.to_local().zero_()
            store.load({**target, "step": 0}, rename=RULES, cast=True, read_once=read_once)
            for fqn, tensor in want.items():
                full = target[fqn].full_tensor()
                assert torch.equal(full, tensor.bfloat16()), fqn
        wrong = {"q": distribute_tensor(torch.zeros(7, 3), mesh, [Shard(0)])}
        with pytest.raises(cairn.Invalid, match="global shape|in the target"):
            store.load(wrong, rename=RULES, strict=False)
