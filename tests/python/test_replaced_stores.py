"""Goal: a store is what was opened, whatever its address means later."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import cairn
from cairn.dcp import CairnReader, CairnWriter


def replace_by_move(work: Path) -> Path:
    (work / "store").rename(work / "moved")
    (work / "other").rename(work / "store")
    return work / "moved"


def replace_a_link(work: Path) -> Path:
    (work / "new").symlink_to("other")
    (work / "new").rename(work / "link")
    return work / "store"


def change_directory(work: Path) -> Path:
    (work / "elsewhere").mkdir()
    (work / "other").rename(work / "elsewhere" / "link")
    os.chdir(work / "elsewhere")
    return work / "store"


REPLACEMENTS = (replace_by_move, replace_a_link, change_directory)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two stores, and a link to the first of them."""
    monkeypatch.chdir(tmp_path)
    for name, value in (("store", 1), ("other", 100)):
        with cairn.open(name, mode="a") as store:
            store.save(value, {"x": torch.full((4,), value)})
    (tmp_path / "link").symlink_to("store")
    return tmp_path


def the_other(work: Path) -> Path:
    return next(path for path in (work / "elsewhere" / "link", work / "other", work / "store")
                if path.exists())  # fmt: skip


@pytest.mark.parametrize("replace", REPLACEMENTS)
def test_a_writer_and_a_reader_continue_in_the_store_that_they_opened(
    work: Path, replace: Callable[[Path], Path]
) -> None:
    with cairn.open("link", mode="a") as writer, cairn.open("link") as reader:
        own = replace(work)
        handle = writer.save_async(2, {"x": torch.full((4,), 2)})
        handle.result()
        writer.tag(2, "best")
        writer.delete(1)
        assert reader.steps() == [2]
        assert reader.read(step="best")["x"].tolist() == [2] * 4
    assert not list((own / "leases").iterdir())
    other = the_other(work)
    with cairn.open(own, mode="a") as store:
        assert store.steps() == [2]
    with cairn.open(other, mode="a") as store:
        assert store.steps() == [100]
        store.save(101, {})


def test_a_removed_store_is_not_created_again(work: Path) -> None:
    with cairn.open("store", mode="a") as writer, cairn.open("store") as reader:
        shutil.rmtree("store")
        with pytest.raises(cairn.Invalid, match="removed since it was opened"):
            writer.save(2, {"x": torch.ones(4)})
        with pytest.raises(cairn.Error):
            writer.save(3, {})
        with pytest.raises(cairn.Invalid, match="removed since it was opened"):
            reader.steps()
    assert not (work / "store").exists()


def test_relative_addresses_mean_the_same_after_a_change_of_the_directory(work: Path) -> None:
    mirror = cairn.Mirror("mirror")
    writer = CairnWriter("checkpoints", step=1)
    reader = CairnReader("checkpoints", step=1)
    with (
        cairn.open("link", mode="a", fallback="other") as store,
        cairn.open("file:link", fallback=["file:other"]) as second,
    ):
        change = work / "elsewhere"
        change.mkdir()
        os.chdir(change)
        store.save(2, {"x": torch.ones(4)}, mirror=[mirror])
        store.wait_mirrored(timeout=60)
        for one in (store, second):
            assert one.read(step=100)["x"].tolist() == [100] * 4
    dcp.save({"x": torch.ones(4)}, storage_writer=writer)
    state = {"x": torch.zeros(4)}
    dcp.load(state, storage_reader=reader)
    assert state["x"].tolist() == [1] * 4
    assert not list(change.iterdir())
    assert {"mirror", "checkpoints"} <= {path.name for path in work.iterdir()}
