"""What existing code reads and expects of a writer and a reader: torch's storage and Cairn's."""

from __future__ import annotations

import functools
import io
import os
import shutil
import subprocess
from pathlib import Path

import cairn.dcp
import cairn.torch
import fsspec
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn_testing import steps_of
from cairn import _cairn
from cairn.dcp import CairnReader, CairnWriter, _register
from ranks import run_on_ranks
from storages import CAIRN, FILES, errors_of, loaded
from torch.distributed.checkpoint import (
    DefaultSavePlanner,
    _storage_utils,
    state_dict_loader,
    state_dict_saver,
)
from torch.distributed.checkpoint._state_dict_stager import StateDictStager as TorchStager
from torch.distributed.checkpoint.filesystem import FileSystem

import cairn

BIN = Path(__file__).resolve().parents[3] / "build/bin"
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


class MyFiles(FileSystem):
    pass


@pytest.mark.parametrize(("storage_type", "save"), [(CairnWriter, True), (CairnReader, False)])
def test_subclasses_set_the_attributes_of_torchs_classes(path, storage_type, save):
    class Own(storage_type):  # as torch's FsspecWriter and FsspecReader
        def __init__(self, where):
            super().__init__("elsewhere")
            self.fs = MyFiles()
            self.path = self.fs.init_path(where)

    CAIRN.save(STATE, path)
    own = Own(str(path))
    assert type(own.fs) is MyFiles and own.path == path
    assert getattr(own, "storage_data", {}) == {}
    target = blank()
    if save:
        dcp.save({**STATE, "step": 4}, storage_writer=own)
        CAIRN.load(target, path)
    else:
        dcp.load(target, storage_reader=own)
    assert target["step"] == (4 if save else 3)


# `.metadata`


def looks_like_a_checkpoint(folder: str | Path) -> list[bool]:
    """The calls of torchtitan, OLMo-core, torchtnt and verl."""
    fs, path = fsspec.core.url_to_fs(str(folder))
    return [
        os.path.isfile(os.path.join(folder, ".metadata")),
        Path(f"{folder}/.metadata").exists() and Path(f"{folder}/.metadata").stat().st_size > 0,
        fs.exists(os.path.join(path, ".metadata")),
        ".metadata" in os.listdir(folder),
    ]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_other_programs_find_a_checkpoint(storage, path, asynchronous):
    if asynchronous:
        dcp.async_save(STATE, storage_writer=storage.writer(path)).result()
    else:
        storage.save(STATE, path)

    assert looks_like_a_checkpoint(path) == [True] * 4
    assert storage.load(blank(), path)["step"] == 3


def test_no_save_that_failed_looks_like_a_checkpoint(path):
    assert errors_of(CAIRN.save, {"w": torch.ones(2), "x": object()}, path)

    assert not (path / ".metadata").exists()


def test_a_reader_of_torch_fails_with_a_text_that_names_cairn(path):
    CAIRN.save(STATE, path)

    errors = errors_of(FILES.load, blank(), path)

    assert "This is a Cairn store" in str(errors[0]) and "CairnReader" in str(errors[0])


def test_the_marker_survives_everything_that_changes_a_store(path, tmp_path):
    CAIRN.save(STATE, f"{path}@1")
    CAIRN.save({**STATE, "step": 4}, f"{path}@2")
    marker = (path / ".metadata").read_bytes()

    with cairn.open(path, mode="a", grace=0) as store:
        store.delete(1)
        store.compact()
        store.save(3, STATE)
    with cairn.open(path) as store, cairn.open(tmp_path / "copy", mode="a") as copy:
        cairn.copy_steps(store, copy, [2])
    for verb in ("kv-dump verify", "kv-admin compact", "kv-admin rebuild"):
        if "rebuild" in verb:
            shutil.rmtree(path / "roots")
        program, word = verb.split()
        subprocess.run([BIN / program, word, path], check=True, capture_output=True, timeout=1200)

    assert (path / ".metadata").read_bytes() == marker
    assert not (tmp_path / "copy" / ".metadata").exists()  # which only CairnWriter leaves
    assert steps_of(path) == [2, 3] and steps_of(tmp_path / "copy") == [2]


def test_a_marker_that_remains_alone_does_not_keep_a_store_from_being_created(path):
    CAIRN.save(STATE, path)
    for entry in path.iterdir():  # as rm -r path/*
        if not entry.name.startswith("."):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    CAIRN.save({**STATE, "step": 4}, path)

    assert CAIRN.load(blank(), path)["step"] == 4


def test_the_metadata_of_another_checkpoint_is_not_replaced(path):
    CAIRN.save(STATE, path)
    FILES.save({**STATE, "step": 4}, path)
    CAIRN.save({**STATE, "step": 5}, path)

    assert FILES.load(blank(), path)["step"] == 4
    assert CAIRN.load(blank(), path)["step"] == 5


def test_a_marker_that_cannot_be_written_is_a_warning(path, monkeypatch):
    def fail(*_):
        raise cairn.Unavailable("the disk is full")

    monkeypatch.setattr(_cairn.StepPart, "put_if_absent", fail)

    with pytest.warns(UserWarning, match="the step exists.*is full"):
        CAIRN.save(STATE, path)
    assert CAIRN.load(blank(), path)["step"] == 3


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
    monkeypatch.setattr(_register, "_creates", False)
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


def test_new_checkpoints_become_stores_if_asked(path, registered):
    """The calls of torchtitan: a directory per step, an existing folder, and no storage."""
    cairn.dcp.register(new=True)
    cairn.dcp.register()
    (path / "step-2").mkdir(parents=True)
    FILES.save(STATE, path / "step-1")

    for step in (1, 2, 3):
        dcp.save({**STATE, "step": step}, checkpoint_id=str(path / f"step-{step}"))
        dcp.async_save({**STATE, "step": step}, checkpoint_id=path / f"async-{step}").result()

    for name in ("step-1", "step-2", "step-3", "async-1"):
        assert (path / name / ".metadata").is_file()
        assert (path / name / "CAIRN").exists() is (name != "step-1")
        target = blank()
        dcp.load(target, checkpoint_id=path / name)
        assert target["step"] == int(name[-1])
    with pytest.raises(dcp.CheckpointException, match="No such file"):
        dcp.load(blank(), checkpoint_id=path / "step-9")
    dcp.save(STATE, checkpoint_id="memory:new")
    assert _cairn.read_object("memory:new", ".metadata")


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
    if storage is CAIRN:
        with cairn.open(path) as store:
            assert store.read("inner")["inner"]["data"] == b"\x80 some bytes"


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


def save_after_more(rank: int, path: Path) -> None:
    """The global plan of the third save is, for each rank, that of a plan that torch completed."""
    state = {"w": torch.ones(4), "r": rank, "n": 1}
    planner = functools.partial(DefaultSavePlanner, enable_plan_caching=True)
    FILES.save(state, path / "1", planner=planner())
    FILES.save({**state, "new": 2}, path / "2", planner=planner())
    CAIRN.save(state, path / "3", planner=planner())
    CAIRN.save({**state, "new": 3}, path / "4", planner=planner())
    CAIRN.save(state, path / "4", planner=planner())
    FILES.save(state, path / "5", planner=planner())
    assert loaded(path / "3")["w"].sum() == 4 and loaded(path / "4")["n"] == 1


@pytest.mark.parametrize("world_size", [1, 2])
def test_cached_plans_work_when_a_key_comes_and_goes(path, world_size):
    path.mkdir()
    run_on_ranks(save_after_more, path, world_size=world_size)


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
