"""Saves by address, of which a refused one creates no store, and relative addresses."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import steps_of

import cairn
from cairn._by_address import save_by_address
from cairn.dcp import CairnReader, CairnWriter
from cairn.torch import Saver

REFUSED = {
    "object": ({"a": object()}, {}),
    "nul": ({"a\0b": 1}, {}),
    "tag": ({"a": 1}, {"tags": ["not a tag"]}),
    "note": ({"a": 1}, {"note": "\ud800"}),
    "chunk": ({"a": 1}, {"tuning": cairn.SaveTuning(chunk_bytes=1 << 40)}),
    "pattern": ({"a": 1}, {"keys": "b"}),
    "option": ({"a": 1}, {"tag": "one"}),
    "base step": ({"a": 1}, {"tuning": cairn.SaveTuning(base_step=5)}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_save_by_address_leaves_no_store(tmp_path, why):
    state, options = REFUSED[why]
    with pytest.raises((cairn.Error, TypeError)):
        save_by_address(tmp_path / "store", 1, state, **options)
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


@pytest.mark.parametrize("address", ["~/store", "~", "file:~/store", "~other/store"])
def test_a_tilde_is_refused_and_nothing_is_created(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    calls = [
        lambda: cairn.open(address, mode="a"),
        lambda: cairn.open("store", mode="a", fallback=address),
        lambda: cairn.Mirror(address),
        lambda: CairnWriter(address, step=1),
        lambda: save_by_address(address, 1, {"a": 1}),
    ]
    for call in calls:
        with pytest.raises(cairn.Invalid, match="only a shell replaces '~'"):
            call()
    assert not list(tmp_path.iterdir())
    cairn.open(f"./{address.removeprefix('file:')}", mode="a").close()


def test_the_configuration_of_a_pool_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = CairnWriter("rados:pool/run?conf=ceph.conf&id=me", step=1)
    assert writer.checkpoint_id == f"rados:pool/run?conf={tmp_path}/ceph.conf&id=me@1"


def test_a_working_directory_that_was_removed_concerns_only_relative_addresses(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    os.chdir("gone")
    os.rmdir(tmp_path / "gone")
    cairn.open(tmp_path / "store", mode="a").close()
    with pytest.raises(cairn.Unavailable, match="working directory"):
        cairn.open("store", mode="a")


def test_relative_addresses_mean_the_same_after_a_change_of_the_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in (("store", 1), ("other", 100)):
        with cairn.open(name, mode="a") as store:
            store.save(value, {"x": torch.full((4,), value)})
    (tmp_path / "link").symlink_to("store")
    mirror = cairn.Mirror("mirror")
    writer = CairnWriter("checkpoints", step=1)
    reader = CairnReader("checkpoints", step=1)
    with (
        cairn.open("link", mode="a", fallback="other") as store,
        cairn.open("file:link", fallback=["file:other"]) as second,
        Saver(store, every=1, keep_last=2, mirror=mirror) as saver,
    ):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        os.chdir(elsewhere)
        assert saver.resume({"x": torch.zeros(4, dtype=torch.int64)}, step=1) == 1
        for step in (2, 3):
            saver.step(step, {"x": torch.ones(4)})
        store.wait_mirrored(timeout=1200)
        for one in (store, second):
            assert one.read(step=100)["x"].tolist() == [100] * 4
    dcp.save({"x": torch.ones(4)}, storage_writer=writer)
    state = {"x": torch.zeros(4)}
    dcp.load(state, storage_reader=reader)
    assert state["x"].tolist() == [1] * 4
    assert not list(elsewhere.iterdir())
    assert steps_of(tmp_path / "store") == [2, 3] and steps_of(tmp_path / "mirror")[-1] == 3
    assert {"mirror", "checkpoints"} <= {path.name for path in tmp_path.iterdir()}


def test_a_second_writer_is_refused_by_any_spelling_of_the_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/link").symlink_to(tmp_path / "store")
    with cairn.open("store", mode="a") as store:
        monkeypatch.chdir("elsewhere")
        for spelling in (tmp_path / "store", "../store", "file:link"):
            with pytest.raises(cairn.Conflict, match="this process: "):
                cairn.open(spelling, mode="a")
        with cairn.open("store", mode="a") as other:  # this is elsewhere/store
            other.save(5, {})
        store.save(1, {})
    with cairn.open(tmp_path / "store", mode="a") as again:  # close has removed the lease
        assert again.steps() == [1]


def test_the_cache_of_readers_stays_where_it_was_and_needs_no_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with cairn.open("memory:cached", mode="a") as store:
        store.save(1, {"x": np.arange(100_000)})
    monkeypatch.setenv("CAIRN_CACHE", "~/cache")
    with pytest.raises(cairn.Invalid, match="only a shell replaces '~'"):
        cairn.open("memory:cached")
    monkeypatch.setenv("CAIRN_CACHE", "cache")
    with cairn.open("memory:cached") as store:
        monkeypatch.chdir("elsewhere")
        store.read()
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*")) > 100_000
    assert not list((tmp_path / "elsewhere").iterdir())
