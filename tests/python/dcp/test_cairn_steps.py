"""Cairn's additions under dcp: steps of a store, reuse, the native API on the same steps."""

from __future__ import annotations

import pickle
import weakref

import cairn
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn_testing import assert_same, random_tensor, shares_storage, steps_of
from storages import CAIRN, errors_of, loaded
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

STATE = {
    "model": {"a.b": torch.arange(6.0), "a": {"c": torch.ones(2, 3)}},
    "optim": {"state": {"0": {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 0.1}]},
    "betas": (0.9, 0.99),
    "shape": torch.Size([2, 3]),
    "list": [torch.zeros(2), {"x": None}],
    "epoch": 3,
}


def save(state: dict, *args, **options) -> None:
    dcp.save(state, storage_writer=CairnWriter(*args, **options))


# Which step ---------------------------------------------------------------------------------------


def test_a_store_keeps_many_steps(path):
    save({"n": 1}, path, step=10)
    save({"n": 2}, f"{path}@20")
    dcp.save({"n": 3}, checkpoint_id=f"file:{path}@30", storage_writer=CairnWriter())
    dcp.save({"n": 4}, checkpoint_id=path, storage_writer=CairnWriter(step=40))
    assert steps_of(path) == [10, 20, 30, 40]
    assert loaded(path) == loaded(path, step=40) == loaded(f"{path}@40") == {"n": 4}
    assert [loaded(f"{path}@{step}")["n"] for step in (10, 20, 30)] == [1, 2, 3]
    target = {"n": 0}
    dcp.load(target, checkpoint_id=f"{path}@20", storage_reader=CairnReader())
    assert target == {"n": 2}
    dcp.load(target, checkpoint_id=path, storage_reader=CairnReader(step=30))
    assert target == {"n": 3}


def test_a_checkpoint_id_without_a_step_is_a_store_of_its_own(path):
    writer = CairnWriter()
    for name in ("a", "b"):
        dcp.save({"name": name}, checkpoint_id=path / name, storage_writer=writer)
    for name in ("a", "b"):
        with cairn.open(path / name) as store:
            assert store.steps() == [0] and store.read() == {"name": name}


def test_a_store_of_steps_needs_to_be_told_which(path):
    save({"n": 1}, path, step=10)
    error = errors_of(save, {"n": 2}, path)[0]
    assert isinstance(error, cairn.Invalid) and "step" in str(error) and str(path) in str(error)
    assert loaded(path) == {"n": 1}


def test_a_step_that_exists_is_a_conflict_where_it_must_not_be_replaced(path):
    save({"n": 1}, path, step=10)
    error = errors_of(save, {"n": 2}, path, step=10, overwrite=False)[0]
    assert isinstance(error, cairn.Conflict) and error.step == 10
    save({"n": 3}, path, step=11, overwrite=False)


def test_a_missing_step_is_named(path):
    save({"n": 1}, path, step=10)
    assert "step 7" in str(errors_of(loaded, path, step=7)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: CairnWriter("x@3", step=4),
        lambda: CairnReader("x@3", step=4),
        lambda: CairnWriter(step=-1),
        lambda: CairnWriter(step=2**64),
        lambda: CairnReader("x", step=-1),
        lambda: CairnWriter("gs://bucket/x"),
        lambda: CairnReader("gs://bucket/x"),
        lambda: CairnWriter(b"x"),
    ],
)
def test_addresses_and_steps_that_make_no_sense_are_refused(make):
    with pytest.raises(cairn.Invalid):
        make()


def test_a_folder_whose_name_looks_like_a_step_is_one(tmp_path):
    folder = tmp_path / "run@7"
    with cairn.open(folder, mode="a") as store:
        store.save(3, {"n": 1})
    assert loaded(folder) == {"n": 1}


def test_an_address_makes_no_folder_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save({"n": 1}, f"file:{tmp_path}/deep/er/store")
    save({"n": 2}, "relative/store")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["deep", "relative"]
    assert loaded(tmp_path / "deep/er/store") == {"n": 1}
    assert loaded(tmp_path / "relative" / "store") == {"n": 2}


def test_nobody_says_where():
    assert "checkpoint_id" in str(errors_of(save, {"n": 1})[0])
    assert "checkpoint_id" in str(errors_of(loaded)[0])


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (CairnWriter, {"single_file_per_rank": False, "thread_count": 16}),  # torchtnt's
        (CairnWriter, {"sync_files": False}),
        (CairnWriter, {"serialization_format": SerializationFormat.SAFETENSORS}),
        (CairnReader, {"_extension_registry": object(), "thread_count": 4}),
    ],
)
def test_what_means_nothing_here_is_ignored_with_one_warning(kind, arguments):
    with pytest.warns(UserWarning) as caught:
        created = kind("x", **arguments)

    assert len(caught) == 1 and caught[0].filename == __file__
    assert all(name in str(caught[0].message) for name in arguments)
    for name, value in arguments.items():
        assert getattr(created, name, value) == value


def test_extensions_that_would_change_the_bytes_are_refused():
    with pytest.raises(cairn.Invalid, match="_extensions"):
        CairnWriter("x", _extensions=[object()])


def test_the_arguments_of_files_are_taken_by_position(path):
    writer = CairnWriter(path, True, True, 1, 1000, False, True, None)
    dcp.save(STATE, storage_writer=writer)
    assert_same(loaded(path), STATE)


def test_chunk_bytes_are_what_the_store_cuts_by(path):
    save({"t": torch.zeros(1000)}, path, chunk_bytes=1000)
    tuning = cairn.SaveTuning(chunk_bytes=1000)
    with cairn.open(path, mode="a") as store:
        assert store.save(1, {"t": torch.zeros(1000)}, tuning=tuning).chunks_reused == 4


def test_writers_and_readers_pickle(path):
    writer = pickle.loads(pickle.dumps(CairnWriter(path, step=3, overwrite=False)))
    dcp.save(STATE, storage_writer=writer)
    copy = pickle.loads(pickle.dumps(writer))
    assert isinstance(errors_of(dcp.save, STATE, storage_writer=copy)[0], cairn.Conflict)
    reader = pickle.loads(pickle.dumps(CairnReader(path)))
    reader.read_metadata()
    reader = pickle.loads(pickle.dumps(reader))
    assert_same(_load_state_dict_from_keys(storage_reader=reader), STATE)


def test_a_writer_pickles_while_it_saves(path):
    class Pickling(DefaultSavePlanner):
        def finish_plan(self, new_plan):
            self.data = pickle.dumps(writer)
            return super().finish_plan(new_plan)

    writer = CairnWriter(path)
    planner = Pickling()
    dcp.save({"n": 1}, storage_writer=writer, planner=planner)
    dcp.save({"n": 2}, storage_writer=pickle.loads(planner.data))
    assert loaded(path) == {"n": 2}


# Reuse --------------------------------------------------------------------------------------------


def payload_bytes(path) -> int:
    return sum(file.stat().st_size for file in (path / "segments").iterdir())


@pytest.mark.parametrize("place", ["next step", "same step"])
def test_what_has_not_changed_is_not_written_again(path, place):
    state = {f"t{i}": random_tensor(torch.float32, 300, 1000, seed=i) for i in range(4)}
    save(state, path, step=1)
    first = payload_bytes(path)
    assert first > 4 * 1_200_000
    step = 2 if place == "next step" else 1
    save(state, path, step=step)
    second = payload_bytes(path)
    assert second < first + 100_000
    state["t2"] = state["t2"] + 1
    save(state, path, step=step)
    assert 1_200_000 <= payload_bytes(path) - second < 1_300_000
    assert_same(loaded(path), state)


# The native API on the same steps -----------------------------------------------------------------


def test_the_native_api_reads_what_dcp_saved(path):
    save(STATE, path, step=5)
    with cairn.open(path) as store:
        assert_same(store.read(), STATE)
        assert_same(store.read("model.a.c"), {"model": {"a": {"c": torch.ones(2, 3)}}})
        assert set(store.keys()) == set(cairn_keys(STATE))
        target = {"model": {"a.b": torch.zeros(6)}}
        store.load(target, strict=False)
        assert_same(target, {"model": {"a.b": torch.arange(6.0)}})


def cairn_keys(state: dict, prefix: str = "") -> list[str]:
    items = state.items() if isinstance(state, dict) else enumerate(state)
    names = []
    for key, value in items:
        is_leaf = not isinstance(value, (dict, list, tuple))
        names += [f"{prefix}{key}"] if is_leaf else cairn_keys(value, f"{prefix}{key}.")
    return names


def test_dcp_loads_what_the_native_api_saved(path):
    with cairn.open(path, mode="a") as store:
        store.save(5, STATE)
    assert_same(loaded(path), STATE)
    target = {"model": {"a.b": torch.zeros(6)}, "epoch": 0, "betas": None}
    CAIRN.load(target, path)
    want = {"model": {"a.b": torch.arange(6.0)}, "epoch": 3, "betas": (0.9, 0.99)}
    assert_same(target, want)


def test_arrays_are_plain_values_to_dcp(path):
    state = {"array": np.arange(5), "scalar": np.float32(1.5), "nested": [{"a": (np.ones(2), 1)}]}
    save(state, path)
    assert_same(loaded(path), state)
    assert_same(CAIRN.load({"array": None}, path), {"array": np.arange(5)})
    with cairn.open(path) as store:
        assert_same(store.read(), state)


@pytest.mark.parametrize("length", [1, 5_000])
def test_an_escaped_name_of_a_native_step_is_refused_for_values_of_each_length(path, length):
    with cairn.open(path, mode="a") as store:
        store.save(1, {"a\\b": "x" * length})
    with pytest.raises(cairn.Invalid, match="cannot be named"):
        CairnReader(path).read_metadata()


def test_names_full_of_wildcards_are_names(path):
    state = {"a*": np.arange(2), "a?": np.arange(3), "[ab]": np.ones(1), "!x": np.zeros(2), "ab": 1}
    save(state, path)
    assert_same(loaded(path), state)


def test_a_state_saved_as_one_value_is_nested_to_the_native_api(path):
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.save(STATE, storage_writer=CairnWriter(path), planner=planner)
    with cairn.open(path) as store:
        assert_same(store.read("model.a.c", flat=True), {"model.a.c": torch.ones(2, 3)})
    target = {"model": None, "optim": None}
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    CAIRN.load(target, path, planner=planner)
    assert_same(target, {"model": STATE["model"], "optim": STATE["optim"]})


def test_tied_weights_are_kept_once_and_stay_tied(path):
    weight = random_tensor(torch.float32, 500, 500)
    save({"embed": weight, "head": weight, "view": weight[:100]}, path)
    assert payload_bytes(path) < 1_300_000
    target = {"embed": (tied := torch.zeros(500, 500)), "head": tied, "view": torch.zeros(100, 500)}
    CAIRN.load(target, path)
    assert shares_storage(target["embed"], target["head"])
    assert_same(target, {"embed": weight, "head": weight, "view": weight[:100]})
    with cairn.open(path) as store:
        read = store.read()
        assert shares_storage(read["embed"], read["head"])


class Converting(DefaultSavePlanner):
    """Counts the tensors that it has created and that are still alive."""

    def transform_object(self, write_item, object):
        made = super().transform_object(write_item, object)
        if isinstance(made, torch.Tensor):
            made = made.half()
            self.alive = [*(ref for ref in getattr(self, "alive", []) if ref()), weakref.ref(made)]
            self.most = max(getattr(self, "most", 0), len(self.alive))
        return made


def test_tensors_made_by_a_planner_are_bounded(path):
    state = {f"t{i}": torch.full((500,), float(i)) for i in range(20)}
    planner = Converting()
    writer = CairnWriter(path, per_thread_copy_ahead=2000)  # two of them
    dcp.save(state, storage_writer=writer, planner=planner)
    assert planner.most <= 3
    assert_same(CAIRN.load({key: torch.zeros(500) for key in state}, path), state)


def test_a_step_without_a_dict_is_refused_by_dcp(path):
    with cairn.open(path, mode="a") as store:
        store.save(1, [1, 2])
    assert "is not a dict" in str(errors_of(loaded, path)[0])
