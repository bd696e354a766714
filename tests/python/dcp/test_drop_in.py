"""What existing code reads and expects of a writer and a reader: torch's storage and Cairn's."""

from __future__ import annotations

import io
from pathlib import Path

import cairn.dcp
import cairn.torch
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn_testing import steps_of
from cairn.dcp import CairnReader, CairnWriter
from ranks import run_on_ranks
from storages import CAIRN, FILES, errors_of
from torch.distributed.checkpoint import (
    DefaultSavePlanner,
    _storage_utils,
    state_dict_loader,
    state_dict_saver,
)
from torch.distributed.checkpoint._state_dict_stager import StateDictStager as TorchStager

import cairn

STATE = {"w": torch.arange(6.0), "step": 3}


def blank() -> dict:
    return {"w": torch.zeros(6), "step": 0}


# Attributes


def test_writers_and_readers_have_the_same_attributes(storage, path):
    writer, reader = storage.writer(path), storage.reader(path)

    assert writer.path == reader.path == Path(path)
    assert writer.overwrite is True
    assert writer.single_file_per_rank is True and writer.sync_files is True
    assert writer.thread_count == 1 and writer.per_thread_copy_ahead > 0
    assert writer.rank is None and writer.use_collectives is True
    assert reader.rank is None and reader.use_collectives is True
    file = writer.fs.concat_path(writer.path, "notes.txt")
    assert file == Path(path) / "notes.txt"
    assert writer.fs.exists(path) is reader.fs.exists(path) is False


def test_ids_are_those_of_the_metadata_and_change_with_each_use(storage, path):
    writer, reader = storage.writer(path), storage.reader(path)
    first = writer.save_id
    metadata = dcp.save(STATE, checkpoint_id=path, storage_writer=writer)
    second = writer.save_id
    dcp.load(blank(), checkpoint_id=path, storage_reader=reader)

    assert first != second
    assert metadata.storage_meta.save_id == second
    assert reader.read_metadata().storage_meta.load_id == reader.load_id


def test_stores_outside_of_directories_have_an_address_and_no_fs():
    writer = CairnWriter("s3://bucket/prefix", step=3)

    assert writer.path == "s3://bucket/prefix"
    assert not hasattr(writer, "fs")
    assert CairnWriter().path is None and not hasattr(CairnReader(), "fs")


# Where a checkpoint may be


@pytest.mark.parametrize("name", ["config.json", "model.pt"])
def test_a_checkpoint_is_saved_beside_other_files(storage, path, name):
    path.mkdir()
    (path / name).write_text("mine")

    storage.save(STATE, path)

    assert storage.load(blank(), path)["step"] == 3
    assert (path / name).read_text() == "mine"


def test_a_checkpoint_of_torch_is_not_mixed_with_a_store(path):
    FILES.save(STATE, path)

    errors = errors_of(CAIRN.save, STATE, path)

    assert type(errors[0]) is cairn.Invalid
    assert "another format" in str(errors[0])
    assert FILES.load(blank(), path)["step"] == 3


def test_overwrite_false_keeps_the_checkpoint_and_has_the_text_that_scripts_look_for(storage, path):
    storage.save(STATE, path)
    later = storage.writer(path)
    later.overwrite = False

    for writer in (storage.writer(path, overwrite=False), later):
        errors = errors_of(dcp.save, {**STATE, "step": 4}, storage_writer=writer)
        assert list(errors) == [0] and "Checkpoint already exists" in str(errors[0])
    assert storage.load(blank(), path)["step"] == 3


# Without a reader


@pytest.fixture
def registered(monkeypatch):
    for module in (state_dict_loader, state_dict_saver):
        monkeypatch.setattr(module, "_storage_setup", module._storage_setup)
    cairn.dcp.register()
    cairn.dcp.register()


def test_registered_stores_are_loaded_and_saved_without_a_storage(path, registered):
    with cairn.open(path, mode="a") as store:
        store.save(7, STATE)

    dcp.save({**STATE, "step": 8}, checkpoint_id=f"{path}@8")
    dcp.async_save({**STATE, "step": 9}, checkpoint_id=f"{path}@9").result()

    for checkpoint_id, step in ((f"{path}@7", 3), (f"{path}@8", 8), (path, 9)):
        target = blank()
        dcp.load(target, checkpoint_id=checkpoint_id)
        assert target["step"] == step
        assert torch.equal(target["w"], STATE["w"])
    assert steps_of(path) == [7, 8, 9]


def test_everything_else_is_as_before_the_registration(path, registered):
    dcp.save(STATE, checkpoint_id=path)
    target = blank()
    dcp.load(target, checkpoint_id=path)

    assert target["step"] == 3
    assert (path / ".metadata").exists() and not (path / "CAIRN").exists()


@pytest.mark.parametrize("module", [state_dict_loader, state_dict_saver, _storage_utils])
def test_register_refuses_a_torch_that_chooses_in_another_way(monkeypatch, module):
    monkeypatch.setattr(
        module, "_storage_setup", lambda storage, path, reader=False: FILES.reader(path)
    )
    before = state_dict_loader._storage_setup, state_dict_saver._storage_setup

    with pytest.raises(cairn.Invalid, match="does not choose storages"):
        cairn.dcp.register()

    assert before == (state_dict_loader._storage_setup, state_dict_saver._storage_setup)


# Bytes


@pytest.mark.parametrize("asynchronous", [False, True])
def test_bytes_io_is_loaded_as_bytes_io(storage, path, asynchronous):
    data = io.BytesIO(b"\x80 some bytes")
    data.seek(3)
    state = {"inner": {"data": data}, "empty": io.BytesIO(), "w": torch.ones(2)}
    if asynchronous:
        dcp.async_save(state, storage_writer=storage.writer(path)).result()
    else:
        storage.save(state, path)

    target = {"inner": {"data": None}, "empty": io.BytesIO(b"x"), "w": torch.zeros(2)}
    storage.load(target, path)

    assert type(target["inner"]["data"]) is io.BytesIO
    assert target["inner"]["data"].getvalue() == b"\x80 some bytes"
    assert target["empty"].getvalue() == b""
    # torch's files keep the position too; it is not part of a store.
    assert target["inner"]["data"].tell() == (3 if storage is FILES else 0)


def test_bytes_io_is_bytes_in_the_store(path):
    CAIRN.save({"data": io.BytesIO(b"abc")}, path)

    with cairn.open(path) as store:
        assert store.read() == {"data": b"abc"}


# Plan caching


def save_with_both(rank: int, order: list[str], path: Path) -> None:
    storages = {"files": FILES, "cairn": CAIRN}
    for number, name in enumerate(order):
        state = {"w": torch.full((4,), float(number)), f"own.{rank}": torch.ones(2) * number}
        where = path / f"{name}-{number}"
        storages[name].save(state, where, planner=DefaultSavePlanner(enable_plan_caching=True))
        target = {key: torch.zeros_like(value) for key, value in state.items()}
        storages[name].load(target, where)
        for key, value in state.items():
            assert torch.equal(target[key], value), (order, number, key)
        dist.barrier()


@pytest.mark.parametrize(
    "order",
    [["files", "cairn", "files", "cairn", "cairn"], ["cairn", "files", "cairn", "files", "files"]],
    ids="-".join,
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_cached_plans_work_with_both_storages_in_one_process(path, order, world_size):
    path.mkdir()
    run_on_ranks(save_with_both, order, path, world_size=world_size)


# Stager


@pytest.mark.parametrize("stager_type", [TorchStager, cairn.torch.StateDictStager])
def test_the_arguments_of_torchs_stager_are_accepted(stager_type):
    stager = stager_type(pin_memory=False, share_memory=True, pin_memory_min_bytes=5)
    state = {"w": torch.arange(4.0), "n": 1}

    staged = stager.stage(state, non_blocking=True)

    assert torch.equal(staged["w"], state["w"])
    assert staged["w"].untyped_storage().is_shared()
    assert staged["w"].data_ptr() != state["w"].data_ptr()
    stager.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a process without CUDA")
@pytest.mark.parametrize("stager_type", [TorchStager, cairn.torch.StateDictStager])
def test_pin_memory_is_ignored_with_a_warning_without_cuda(stager_type):
    with pytest.warns(UserWarning, match="pin|memory"):
        stager = stager_type(pin_memory=True)
    assert stager.stage({"n": torch.ones(1)})["n"] == 1
    stager.close()


def test_two_names_of_one_argument_must_agree():
    with pytest.raises(cairn.Invalid, match="same argument"):
        cairn.torch.StateDictStager(pin_memory=False, pinned=True)
    with pytest.raises(cairn.Invalid, match="same argument"):
        cairn.torch.StateDictStager(share_memory=False, shared=True)
