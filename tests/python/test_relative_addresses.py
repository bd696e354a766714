"""Relative addresses mean what they meant when they were given."""

from __future__ import annotations

import os

import torch
import torch.distributed.checkpoint as dcp

import cairn
from cairn.dcp import CairnReader, CairnWriter


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
    ):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        os.chdir(elsewhere)
        store.save(2, {"x": torch.ones(4)}, mirror=[mirror])
        store.wait_mirrored(timeout=60)
        for one in (store, second):
            assert one.read(step=100)["x"].tolist() == [100] * 4
    dcp.save({"x": torch.ones(4)}, storage_writer=writer)
    state = {"x": torch.zeros(4)}
    dcp.load(state, storage_reader=reader)
    assert state["x"].tolist() == [1] * 4
    assert not list(elsewhere.iterdir())
    assert {"mirror", "checkpoints"} <= {path.name for path in tmp_path.iterdir()}
