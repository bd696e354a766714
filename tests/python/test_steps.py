"""Steps: incremental saves, comparing, opening; and the classes and names of errors."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from cairn_testing import assert_same, flip_byte, segment_files

import cairn


def test_diff(store):
    state = {"same": torch.ones(3), "changed": torch.ones(3), "gone": torch.ones(2), "v": 1}
    store.save(1, state)
    store.save(2, {"same": torch.ones(3), "changed": torch.zeros(3), "new": torch.ones(1), "v": 2})
    diff = store.diff(1, 2)
    assert (diff.added, diff.removed, set(diff.changed)) == (("new",), ("gone",), {"changed", "v"})
    assert diff.unchanged_keys == 1
    by_key = {change.fqn: change for change in diff.changes}
    assert by_key["changed"].changed_bytes == by_key["changed"].total_bytes == 12
    assert not by_key["v"].is_tensor and "2" in by_key["v"].detail
    assert store.diff(1, 2, "same").changes == ()
    with pytest.raises(cairn.NotFound):
        store.diff(1, 3)


def test_impossible_step_numbers_are_refused(store):
    for step in (-1, 2**64):
        with pytest.raises(cairn.Invalid, match="steps are"):
            store.save(step, {})
    for step in ("1", True, 1.0):
        with pytest.raises(TypeError):
            store.save(step, {})
    with pytest.raises(TypeError, match="not a bool"):
        store.read(step=False)
    assert store.steps() == []


def test_addresses(path):
    cairn.open(path, mode="a").close()
    cairn.open(f"file:{path}").close()
    cairn.open(str(path)).close()
    with pytest.raises(cairn.Invalid, match="mode"):
        cairn.open(path, mode="w")
    with pytest.raises(cairn.Invalid):
        cairn.open(os.fsencode(path))


def test_a_closed_store_says_so(path):
    store = cairn.open(path, mode="a")
    store.close()
    store.close()
    assert "closed" in repr(store)
    with pytest.raises(cairn.Invalid, match="closed"):
        store.steps()


def test_the_classes_form_one_family():
    for kind in (cairn.NotFound, cairn.Corrupt, cairn.Conflict, cairn.Invalid, cairn.Unavailable):
        assert issubclass(kind, cairn.Error)
    error = cairn.Corrupt("text", key="a.b", step=3, file="f", offset=9)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cairn.Corrupt and str(copy) == "text"
    assert (copy.key, copy.step, copy.file, copy.offset) == ("a.b", 3, "f", 9)


def test_a_missing_step_names_itself(store):
    store.save(1, {"v": 1})
    for call in (
        lambda: store.read(step=7),
        lambda: store.load({"v": 0}, 7),
        lambda: store.keys(7),
        lambda: store.read_slice("v", [], step=7),
        lambda: store.delete(7),
    ):
        with pytest.raises(cairn.NotFound) as caught:
            call()
        assert caught.value.step == 7


def test_a_flipped_bit_is_corrupt_and_named(path):
    good, bad = torch.randn(1000), torch.randn(50_000)
    with cairn.open(path, mode="a") as store:
        store.save(4, {"good": good, "outer": {"bad": bad}})
    (segment,) = segment_files(path)
    position = segment.read_bytes().index(bad.numpy().tobytes()) + 100_000
    flip_byte(segment, position)

    with cairn.open(path) as store:
        target = {"good": torch.zeros(1000), "outer": {"bad": torch.zeros(50_000)}}
        for read in (
            lambda: store.read(),
            lambda: store.load(target),
            lambda: store.read("outer.bad", mmap=True),
            lambda: store.read_slice("outer.bad", [(24_990, 25_010)]),
        ):
            with pytest.raises(cairn.Corrupt) as caught:
                read()
            assert caught.value.key == "outer.bad"
            assert caught.value.file.endswith(segment.name)
            # The chunk that holds the byte.
            assert caught.value.offset <= position < caught.value.offset + bad.nbytes
            assert "outer.bad" in str(caught.value)
        # What is not damaged can still be read.
        assert_same(store.read("good")["good"], good)
        assert_same(store.read_slice("outer.bad", [(0, 10)]), bad[:10])
