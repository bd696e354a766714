"""Patterns of keys with brackets and other wildcards, in every place that takes patterns."""

from __future__ import annotations

import pathlib

import pytest
import torch

import cairn

BIN = pathlib.Path(cairn.__file__).parents[2] / "bin"
NAMES = ["h[0]", "h[1]", "h0", "*", "?x", "!n", "a[b", "c]"]
PATTERN = "h[[]0]"


def state(value: float = 1.0) -> dict:
    return {name: {"w": torch.full((3,), value)} for name in NAMES}


@pytest.fixture
def store(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as opened:
        opened.save(1, state())
        opened.save(2, state(2.0))
        yield opened


def keys(step: int):
    return lambda store: list(store.keys(step))


def loaded(load):
    def call(store):
        target = state()
        load(store, target)
        return [f"{name}.w" for name, value in target.items() if value["w"][0] == 2]

    return call


def unchanged(store):
    """The tensors for which a save believes that they are as in the base step."""
    tuning = cairn.SaveTuning(unchanged=PATTERN)
    with pytest.raises(cairn.Invalid, match="`unchanged` states") as caught:
        store.save(3, state(3.0), tuning=tuning)
    store.save(3, state(3.0) | {"h[0]": {"w": torch.full((3,), 2.0)}}, tuning=tuning)
    return [caught.value.key]


PLACES = {
    "read": lambda store: list(store.read(PATTERN, flat=True)),
    "keys": lambda store: list(store.keys(pattern=PATTERN)),
    "stream": lambda store: [fqn for fqn, _ in store.stream(patterns=PATTERN)],
    "diff": lambda store: list(store.diff(1, 2, PATTERN).changed),
    "damaged_keys": lambda store: [*store.damaged_keys(2, PATTERN), "h[0].w"],
    "load": loaded(lambda store, target: store.load(target, keys=PATTERN)),
    "pull": loaded(lambda store, target: store.pull(target, since=1, keys=PATTERN)),
    "save": lambda store: store.save(3, state(3.0), keys=PATTERN) and keys(3)(store),
    "save_async": lambda store: store.save_async(3, state(3.0), keys=PATTERN).result()
    and keys(3)(store),
    "unchanged": unchanged,
    "graft": lambda store: store.edit(1, into=4, graft_from=2, graft=PATTERN)
    or list(store.diff(1, 4).changed),
    "drop": lambda store: store.edit(1, into=4, drop=PATTERN) or list(store.diff(1, 4).removed),
    "prefix": lambda store: store.save(3, {"w": torch.ones(1)}, prefix="h[0]") and keys(3)(store),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_bracket_is_escaped_as_glob_does(store, place):
    """An escaped name without other wildcards is a literal: it takes the keys below it."""
    assert PLACES[place](store) == ["h[0].w"]


def test_the_errors_propose_the_escape(store):
    with pytest.raises(cairn.NotFound) as caught:
        store.read("h[1]")
    assert "did you mean 'h[[]1]'?" in str(caught.value)
    with pytest.raises(cairn.NotFound) as caught:
        store.read(["h0", "!h0"])
    assert "did you mean" not in str(caught.value)
    with pytest.raises(cairn.Invalid, match=r"write '\[\[\]' for the character"):
        store.read("a[b")
