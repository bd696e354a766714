"""A save by address that is refused creates no store."""

from __future__ import annotations

import numpy as np
import pytest

import cairn
from cairn._by_address import save_by_address

REFUSED = {
    "object": ({"a": object()}, {}),
    "nul": ({"a\0b": 1}, {}),
    "large": ({"a": b"x" * (17 << 20)}, {}),
    "tag": ({"a": 1}, {"tags": ["not a tag"]}),
    "note": ({"a": 1}, {"note": "\ud800"}),
    "chunk": ({"a": 1}, {"tuning": cairn.SaveTuning(chunk_bytes=1 << 40)}),
    "pattern": ({"a": 1}, {"keys": "b"}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_save_by_address_leaves_no_store(tmp_path, why):
    state, options = REFUSED[why]
    with pytest.raises(cairn.Error):
        save_by_address(tmp_path / "store", 1, state, **options)
    assert not (tmp_path / "store").exists()


def test_an_unknown_option_or_base_step_leaves_no_store(tmp_path):
    with pytest.raises(TypeError):
        save_by_address(tmp_path / "store", 1, {"a": 1}, tag="one")
    with pytest.raises(cairn.NotFound):
        save_by_address(tmp_path / "store", 1, {"a": 1}, tuning=cairn.SaveTuning(base_step=5))
    assert not (tmp_path / "store").exists()


def test_a_save_by_address_creates_the_store(tmp_path):
    state = {"a": np.arange(5), "b": 1}
    report = save_by_address(tmp_path / "store", 1, state, tags=iter(["one"]), note="n")
    assert report.step == 1
    with cairn.open(tmp_path / "store") as store:
        assert store.read("b", step="one") == {"b": 1}
    save_by_address(tmp_path / "store", 1, state, overwrite=True)
    with pytest.raises(cairn.Conflict):
        save_by_address(tmp_path / "store", 1, state)


def test_jax_save_by_address_leaves_no_store(tmp_path):
    jax = pytest.importorskip("jax")
    import cairn.jax

    with pytest.raises(cairn.Error):
        cairn.jax.save(tmp_path / "store", 1, {"a": jax.numpy.ones(3), "b\0": 1})
    assert not (tmp_path / "store").exists()
