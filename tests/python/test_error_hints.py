"""Errors of the Python API name the key and the step, and the next thing to try, which works. The
hints of the core are in tests/tools/test_next_steps.py, which runs the programs that they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import cairn

Call = Callable[[cairn.Store], Any]


class Case(NamedTuple):
    """One error: the call, its class, what the text contains, and a call that does as it says."""

    call: Call
    kind: type[BaseException]
    words: tuple[str, ...]
    fix: Call


def state() -> dict[str, Any]:
    return {"model": {"weight": torch.ones(8, 4), "bias": torch.zeros(8)}, "step": 100}


def weight(rows: int = 8, **options: Any) -> dict[str, Any]:
    return {"model": {"weight": torch.zeros(rows, 4, **options)}}


def load(given: dict[str, Any], **options: Any) -> Call:
    return lambda store: store.load(given, **options)


SHAPES = "'model.weight' is float32 [8, 4] in step 100"
CASES = {
    "pattern": Case(
        lambda store: store.read("modle"), cairn.NotFound,
        ("step 100", "modle", "did you mean 'model'?"), lambda store: store.read("model"),
    ),
    "key": Case(
        lambda store: store.read_slice("model.wieght", []), cairn.NotFound,
        ("step 100", "model.wieght", "did you mean 'model.weight'?"),
        lambda store: store.read_slice("model.weight", []),
    ),
    "dtype": Case(
        load(weight(dtype=torch.bfloat16), strict=False), cairn.Invalid,
        (SHAPES, "bfloat16 [8, 4]", "pass cast=True"),
        load(weight(dtype=torch.bfloat16), strict=False, cast=True),
    ),
    "shape": Case(
        load(weight(9), strict=False), cairn.Invalid,
        (SHAPES, "[9, 4]", "pass keys='!model.weight' to leave it out", "with read_slice()"),
        load(weight(9), strict=False, keys="!model.weight"),
    ),
    "missing": Case(
        load({"model": {"wieght": torch.zeros(8, 4)}}), cairn.NotFound,
        ("step 100 lacks 'model.wieght'", "did you mean 'model.weight'?"),
        load(weight(), keys="model.weight"),
    ),
    "missing prefix": Case(
        load(weight()["model"]), cairn.NotFound,
        ("step 100 lacks 'weight'", "has 'model.weight'", "pass prefix='model'"),
        load(state()["model"], prefix="model"),
    ),
    "a wrapper's prefix": Case(
        load({"module": state()}), cairn.NotFound,
        ("step 100 lacks 'module.model.weight'", "pass strip_wrappers=True"),
        load({"module": state()}, strip_wrappers=True),
    ),
    "another prefix": Case(
        load({"net": state()}), cairn.NotFound,
        ("step 100 lacks 'net.model.weight'", "pass rename={'^': 'net.'}"),
        load({"net": state()}, rename={"^": "net."}),
    ),
    "nothing matches": Case(
        load({"module": state()}, strict=False), cairn.NotFound,
        ("step 100 has no key of the state", "'module.model.weight'", "pass strip_wrappers=True"),
        load({"module": state()}, strip_wrappers=True),
    ),
    "unexpected": Case(
        load(weight()), cairn.Invalid,
        ("the state lacks 'model.bias'", "step 100", "load a part with keys=..."),
        load(weight(), keys="model.weight"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_error_names_what_where_and_the_next_thing_to_try(name, store):
    store.save(100, state())
    case = CASES[name]

    with pytest.raises(case.kind) as caught:
        case.call(store)

    text = str(caught.value)
    assert [part for part in case.words if part not in text] == [], text
    case.fix(store)
