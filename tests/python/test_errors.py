"""Errors: the class, the names in the text, and an unchanged store."""

from __future__ import annotations

import pickle

import pytest
import torch
from cairn_testing import assert_same, flip_byte, segment_files

import cairn


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


def test_an_empty_store_has_no_latest_step(store):
    with pytest.raises(cairn.NotFound):
        store.read()


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
