"""Errors: the class, the names in the text, and an unchanged store."""

from __future__ import annotations

import pickle

import pytest
import torch
from cairn_testing import assert_same, run_python, segment_files

import cairn


def test_the_classes_form_one_family():
    for kind in (cairn.NotFound, cairn.Corrupt, cairn.Conflict, cairn.Invalid, cairn.Unavailable):
        assert issubclass(kind, cairn.Error)
    error = cairn.Corrupt("text", key="a.b", step=3, file="f", offset=9)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cairn.Corrupt and str(copy) == "text"
    assert (copy.key, copy.step, copy.file, copy.offset) == ("a.b", 3, "f", 9)


def test_no_store_is_not_found_and_nothing_is_made(path):
    with pytest.raises(cairn.NotFound) as caught:
        cairn.open(path)
    assert str(path) in str(caught.value)
    assert not path.exists()


def test_what_is_no_store_is_refused(path):
    path.mkdir()
    (path / "CAIRN").write_text("this is something else entirely\n")
    with pytest.raises(cairn.Error) as caught:
        cairn.open(path)
    assert str(path) in str(caught.value)


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
    content = bytearray(segment.read_bytes())
    position = content.index(bad.numpy().tobytes()) + 100_000
    content[position] ^= 4
    segment.write_bytes(content)

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


def test_a_full_disk_is_unavailable_and_leaves_the_store_as_it_was(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"v": 1})
    # A limit on file sizes simulates a full disk.
    result = run_python(
        """
        import resource, sys, cairn, numpy
        store = cairn.open(sys.argv[1], mode="a")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, resource.RLIM_INFINITY))
        try:
            store.save(2, {"big": numpy.ones(4 << 20)})
        except cairn.Unavailable as error:
            print("unavailable", error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1, resource.RLIM_INFINITY))
        store.save(3, {"v": 3})
        store.close()
        """,
        path,
    )
    assert result.stdout.startswith("unavailable")
    with cairn.open(path) as store:
        assert store.steps() == [1, 3]
        assert store.read(step=1) == {"v": 1}
    assert len(segment_files(path)) == 0
