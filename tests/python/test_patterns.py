"""Patterns of keys with brackets and other wildcards, in calls that read, save and edit."""

from __future__ import annotations

import pytest
import torch

import cairn

NAMES = ["h[0]", "h[1]", "h0", "*", "?x", "!n", "a[b", "c]"]
PATTERN = "h[[]0]"


def state(value: float = 1.0) -> dict:
    return {name: {"w": torch.full((3,), value)} for name in NAMES}


@pytest.fixture
def store(store):
    store.save(1, state())
    store.save(2, state(2.0))
    return store


def unchanged(store):
    """The tensors for which a save believes that they are as in the base step."""
    tuning = cairn.SaveTuning(unchanged=PATTERN)
    with pytest.raises(cairn.Invalid, match="`unchanged` states") as caught:
        store.save(3, state(3.0), tuning=tuning)
    store.save(3, state(3.0) | {"h[0]": {"w": torch.full((3,), 2.0)}}, tuning=tuning)
    return [caught.value.key]


PLACES = {
    "read": lambda store: list(store.read(PATTERN, flat=True)),
    "save": lambda store: store.save(3, state(3.0), keys=PATTERN) and list(store.keys(3)),
    "unchanged": unchanged,
    "graft": lambda store: store.edit(1, into=4, graft_from=2, graft=PATTERN)
    or list(store.diff(1, 4).changed),
    "prefix": lambda store: store.save(3, {"w": torch.ones(1)}, prefix="h[0]")
    and list(store.keys(3)),
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
