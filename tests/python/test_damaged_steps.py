"""Damage: loads and reads that skip it, and scrubs in the background that find it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cairn_testing import damage, flip_byte, payload, segment_files, wait_until
from ranks import with_ranks

import cairn


def make_state(value: float = 1.0) -> dict:
    """No two tensors have bytes in common."""
    generator = torch.Generator().manual_seed(1)

    def tensor(length: int) -> torch.Tensor:
        return torch.rand(length, generator=generator) + value

    shared = tensor(300)
    return {
        "model": {f"w{i}": tensor(40_000) for i in range(6)},
        "list": [tensor(5), np.full(7, value), "text"],
        "tied": [shared, shared],
        "odd [name]*": tensor(9),
        "step": 7,
    }


@pytest.fixture
def damaged(path):
    """A store in which three keys are damaged; one of them is tied to another."""
    state = make_state()
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
    for tensor in (state["model"]["w3"], state["tied"][0], state["odd [name]*"]):
        damage(path, payload(tensor))
    return path


DAMAGED = {"model.w3", "tied.0", "tied.1", "odd [name]*"}


def test_damaged_keys_are_found_and_all_others_are_read(damaged):
    with cairn.open(damaged) as store:
        found = store.damaged_keys()
        assert set(found) == DAMAGED
        assert all(isinstance(error, cairn.Corrupt) for error in found.values())
        error = found["model.w3"]
        assert error.key == "model.w3" and error.step == 1 and error.file.endswith(".seg")
        assert store.damaged_keys(pattern="list") == {}
        with pytest.raises(cairn.Corrupt):
            store.read()
        with pytest.warns(RuntimeWarning, match="skipped: ") as warned:
            got = store.read(skip_damaged=True)
        assert len(warned) == len(DAMAGED)
        want = make_state()
        assert set(got["model"]) == {f"w{i}" for i in range(6)} - {"w3"}
        assert all(torch.equal(got["model"][name], want["model"][name]) for name in got["model"])
        assert got["step"] == 7 and got["list"][2] == "text" and "odd [name]*" not in got


def test_a_load_leaves_damaged_leaves_unchanged_and_reports_them(damaged):
    with cairn.open(damaged) as store:
        state, want = make_state(100.0), make_state()
        with pytest.raises(cairn.Corrupt):
            store.load(make_state(100.0))
        report = store.load(state, skip_damaged=True)
        assert set(report.skipped) == DAMAGED
        assert report.missing == () and report.unexpected == ()
        for i in range(6):
            expected = make_state(100.0) if i == 3 else want
            assert torch.equal(state["model"][f"w{i}"], expected["model"][f"w{i}"])
        assert state["tied"][0][0] >= 100 and torch.equal(state["list"][0], want["list"][0])


def test_a_damaged_tensor_with_an_escaped_key_is_skipped(path):
    generator = torch.Generator().manual_seed(2)
    both = {"a.b": torch.rand(300, generator=generator), "a": {"b": torch.rand(300)}, "c.d": 1}
    with cairn.open(path, mode="a") as store:
        store.save(1, both)
    damage(path, payload(both["a.b"]))
    with cairn.open(path) as store:
        zeros = torch.zeros(300)
        flat, nested = {"a.b": zeros.clone()}, {"a": {"b": zeros.clone()}, "c": {"d": 0}}
        for state, keys in ((flat, "a\\.b"), (nested, None)):
            report = store.load(state, keys=keys, skip_damaged=True)
            assert set(report.skipped) == {"a\\.b"}
            assert report.missing == report.unexpected == ()
        assert torch.equal(flat["a.b"], zeros)
        assert torch.equal(nested["a"]["b"], both["a"]["b"]) and nested["c"]["d"] == 1
        with pytest.warns(RuntimeWarning, match="skipped: "):
            assert set(store.read(skip_damaged=True)) == {"a", "c.d"}


@with_ranks(2)
def test_ranks_skip_the_same_keys(rank, damaged):
    with cairn.open(damaged) as store:
        state = make_state(100.0)
        report = store.load(state, skip_damaged=True)
        assert state["model"]["w3"][0] >= 100 and state["model"]["w4"][0] < 3
        assert set(report.skipped) == DAMAGED


def test_a_scrub_finds_damage_and_new_steps(store, path):
    store.save(1, {"w": torch.arange(100_000)})
    with store.scrub(max_rate=0, every=0.01) as scrub:
        wait_until(lambda: scrub.passes >= 2)
        assert scrub.damage == () and scrub.damage_count == 0 and scrub.error is None
        store.save(2, {"w": torch.arange(100_000) * 2})
        for segment in segment_files(path):
            flip_byte(segment, 5000)
        wait_until(lambda: scrub.damage_count == 2)
        assert all(isinstance(error, cairn.Corrupt) for error in scrub.damage)
        assert "w" in {error.key for error in scrub.damage}
    passes = scrub.passes
    assert not scrub.is_running
    scrub.stop()
    assert scrub.passes == passes


def test_a_scrub_outlives_the_handle_and_reports_how_far_its_pass_is(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"w": torch.arange(4_000_000)})
        scrub = store.scrub(max_rate=1000)  # after the first block, it waits for hours
    seen = [scrub.progress]
    wait_until(lambda: seen.append(scrub.progress) or 0 < seen[-1][0] < 32_000_000)
    scrub.stop()
    assert scrub.passes == 0 and {total for _, total in seen} <= {0, 32_000_000}
    with cairn.open(path) as store, store.scrub() as scrub:
        wait_until(lambda: scrub.passes == 1)
        assert scrub.progress == (32_000_000, 32_000_000)
