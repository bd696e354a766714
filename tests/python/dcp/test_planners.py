"""Custom planners: they decide what is saved, under which names, and what is loaded."""

from __future__ import annotations

import io
import json

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same
from storages import failing, failures_of
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.default_planner import (
    create_default_global_load_plan,
    create_default_global_save_plan,
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner, WriteItemType


def state_of(step: int) -> dict:
    weights = {f"w{i}": torch.full((3, i + 1), step + i / 4) for i in range(4)}
    return {"model": weights, "betas": (0.9, 0.99), "step": step}


def blank_state() -> dict:
    weights = {f"w{i}": torch.zeros(3, i + 1) for i in range(4)}
    return {"model": weights, "betas": None, "step": -1}


class HalfByTransform(DefaultSavePlanner):
    """Calls the default planner first, as most custom planners do."""

    def transform_object(self, write_item, object):
        object = super().transform_object(write_item, object)
        return object.half() if isinstance(object, torch.Tensor) else object


class HalfByResolve(DefaultSavePlanner):
    def resolve_data(self, write_item):
        data = super().resolve_data(write_item)
        return data.half() if isinstance(data, torch.Tensor) else data


@pytest.mark.parametrize("planner_type", [HalfByTransform, HalfByResolve])
def test_a_save_planner_converts_tensors(storage, path, planner_type):
    state = state_of(1)
    state["model"]["w0"].fill_(1 / 3)
    storage.save(state, path, planner=planner_type())
    got = storage.load(blank_state(), path)
    want = dict(state, model={name: w.half().float() for name, w in state["model"].items()})
    assert_same(got, want)


# Planners that inherit nothing --------------------------------------------------------------------


class JsonSavePlanner(SavePlanner):
    """Values are JSON; nothing is flattened or cached."""

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        self.state, self.is_coordinator = state_dict, is_coordinator

    def create_local_plan(self):
        return create_default_local_save_plan(self.state, self.is_coordinator)

    def create_global_plan(self, all_plans):
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan):
        return new_plan

    def resolve_data(self, write_item):
        value = self.state[write_item.index.fqn]
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(json.dumps(value).encode())
        return value


class JsonLoadPlanner(LoadPlanner):
    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        self.state, self.metadata = state_dict, metadata
        self.committed: list[str] = []

    def create_local_plan(self):
        return create_default_local_load_plan(self.state, self.metadata)

    def create_global_plan(self, global_plan):
        return create_default_global_load_plan(global_plan)

    def finish_plan(self, central_plan):
        return central_plan

    def load_bytes(self, read_item, value):
        self.state[read_item.dest_index.fqn] = json.loads(value.read())

    def resolve_tensor(self, read_item):
        return torch.empty(read_item.lengths)  # not where it will be in the end

    def commit_tensor(self, read_item, tensor):
        self.state[read_item.dest_index.fqn].copy_(tensor)
        self.committed.append(read_item.dest_index.fqn)


def test_planners_that_inherit_nothing_have_their_own_bytes_back(storage, path):
    state = {"a": torch.arange(4.0), "b": torch.ones(2, 2), "n": {"x": [1, None]}, "text": "läuft"}
    storage.save(state, path, planner=JsonSavePlanner())
    target = {"a": torch.zeros(4), "b": torch.zeros(2, 2), "n": 0, "text": 0}
    planner = JsonLoadPlanner()
    storage.load(target, path, planner=planner)
    assert_same(target, state)
    assert sorted(planner.committed) == ["a", "b"]


@pytest.mark.parametrize("data", [b"", b"{}", b"\0" * 1000, bytes(range(256)), b"P", b"PK"])
def test_bytes_of_a_planner_come_back_as_given(storage, path, data):
    class Giving(JsonSavePlanner):
        def resolve_data(self, write_item):
            return io.BytesIO(data)

    class Taking(JsonLoadPlanner):
        def load_bytes(self, read_item, value):
            self.state["x"] = (value.tell(), value.read())

    storage.save({"x": None}, path, planner=Giving())
    assert storage.load({"x": None}, path, planner=Taking()) == {"x": (0, data)}


# Loading ------------------------------------------------------------------------------------------


class Renaming(DefaultLoadPlanner):
    """Takes ``module.…`` of the target from ``model.…`` of the checkpoint."""

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        super().set_up_planner(state_dict, metadata, is_coordinator)

        def saved(fqn: str) -> str:
            return fqn.replace("module.", "model.")

        self.state_dict = {saved(fqn): value for fqn, value in self.state_dict.items()}
        self.mappings = {saved(fqn): path for fqn, path in self.mappings.items()}


def test_a_load_planner_renames(storage, path):
    state = state_of(4)
    storage.save({**state, "model": {**state["model"], "count": 7}}, path)
    target = {"module": {**blank_state()["model"], "count": 0}, "step": 0}
    storage.load(target, path, planner=Renaming())
    assert_same(target, {"module": {**state["model"], "count": 7}, "step": 4})


class Scaling(DefaultLoadPlanner):
    """Reads into its own memory, and transforms tensors and values."""

    def transform_tensor(self, read_item, tensor):
        self.targets = getattr(self, "targets", [])
        self.targets.append(super().transform_tensor(read_item, tensor))
        return torch.empty(read_item.lengths, dtype=torch.float64)

    def commit_tensor(self, read_item, tensor):
        self.targets.pop(0).copy_(tensor * 10)

    def load_bytes(self, read_item, value):
        loaded = torch.load(value, weights_only=False)
        buffer = io.BytesIO()
        torch.save([loaded, loaded], buffer)
        buffer.seek(0)
        super().load_bytes(read_item, buffer)


def test_a_load_planner_changes_what_it_is_given(storage, path):
    storage.save(state_of(2), path)
    target = storage.load({"model": {"w1": torch.zeros(3, 2)}, "step": 0}, path, planner=Scaling())
    assert_same(target, {"model": {"w1": torch.full((3, 2), 22.5)}, "step": [2, 2]})


class Recording(DefaultLoadPlanner):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.calls: list[tuple] = []

    def resolve_tensor(self, read_item):
        self.calls.append(("resolve", read_item.dest_index.fqn))
        return super().resolve_tensor(read_item)

    def commit_tensor(self, read_item, tensor):
        self.calls.append(("commit", read_item.dest_index.fqn, tensor.sum().item()))


def test_each_tensor_is_resolved_once_and_committed_when_filled(storage, path):
    storage.save(state_of(2), path)
    planner = Recording()
    storage.load(blank_state(), path, planner=planner)
    names = [f"model.w{i}" for i in range(4)]
    assert sorted(call for call in planner.calls if call[0] == "resolve") == [
        ("resolve", name) for name in names
    ]
    assert sorted(call for call in planner.calls if call[0] == "commit") == [
        ("commit", name, 3 * (i + 1) * (2 + i / 4)) for i, name in enumerate(names)
    ]


# Failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method", ["create_local_plan", "resolve_tensor", "commit_tensor", "load_bytes"]
)
def test_a_load_works_after_one_that_failed(storage, path, method):
    storage.save(state_of(1), path)
    reader = storage.reader(path)
    planner = failing(DefaultLoadPlanner, method)()
    error = failures_of(dcp.load, blank_state(), storage_reader=reader, planner=planner)
    assert error == {0: "KeyError"}
    target = blank_state()
    dcp.load(target, storage_reader=reader)
    assert_same(target, state_of(1))
