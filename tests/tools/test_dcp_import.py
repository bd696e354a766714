"""kv-admin and torch.distributed.checkpoint: imports give the state that was saved."""

import collections
import pickle
import random

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same, payload, random_tensor
from ranks import run_on_ranks
from torch.distributed.checkpoint.filesystem import SerializationFormat

from torch_states import admin, program  # noqa: F401 - fixtures
from torch_states import (
    Runs,
    every_dtype,
    imported,
    nested,
    plain_values,
    quietly,
    read,
    refused,
    save_dcp,
)


def test_every_dtype_and_value(admin, tmp_path):
    # A tuple is one item in DCP; dicts become keys, which are strings.
    state = {"t": every_dtype(), "values": tuple(plain_values().values())}
    save_dcp(state, tmp_path / "d")
    imported(admin, tmp_path / "s", tmp_path / "d")
    assert_same(read(tmp_path / "s"), state)


FILES_OF_ITEMS = {"single_file_per_rank": False}


@pytest.mark.parametrize("options", [{}, {"thread_count": 4}, FILES_OF_ITEMS], ids=str)
def test_every_way_of_writing_files(admin, tmp_path, options):
    state = nested()
    save_dcp(state, tmp_path / "d", **options)
    finished = imported(admin, tmp_path / "s", tmp_path / "d")
    assert_same(read(tmp_path / "s"), state)
    assert "warning" not in finished.err


def test_a_format_that_torch_does_not_read_is_refused(admin, tmp_path):
    save_dcp(
        {"w": torch.ones(3)}, tmp_path / "d", serialization_format=SerializationFormat.SAFETENSORS
    )
    with pytest.raises(dcp.api.CheckpointException):
        quietly(dcp.load, {"w": torch.ones(3)}, checkpoint_id=tmp_path / "d")
    assert "not a file of torch.save" in refused(admin, tmp_path / "s", tmp_path / "d")


def test_a_flat_state_keeps_its_flat_keys_below_a_prefix(admin, tmp_path):
    state = {"a.b": torch.ones(2), "n": {"kept": [1, torch.zeros(3)]}}
    save_dcp(state, tmp_path / "d", planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    imported(admin, tmp_path / "s", tmp_path / "d", "--prefix", "model")
    assert_same(read(tmp_path / "s"), {"model": state})


def whole():
    generator = torch.Generator().manual_seed(5)
    shapes = {"row": (7, 5), "col": (6, 11), "two": (9, 10), "replicated": (4, 4), "few": (2, 3),
              "explicit": (8, 3), "plain": (3,), "bf16": (16, 8)}  # fmt: skip
    state = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {**state, "bf16": state["bf16"].to(torch.bfloat16)}


def save_on_ranks(rank, folder, kinds):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    line = init_device_mesh("cpu", (4,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    full = whole()
    for kind in kinds:
        # As FSDP1 saves, with explicit boxes. The last rank has two of them and rank 1 has none.
        begins = {0: [0], 1: [], 2: [5], 3: [6, 3]}[rank]
        ends = {0: 3, 5: 6, 6: 8, 3: 5}
        shards = [
            sharded_tensor.Shard.from_tensor_and_offsets(
                full["explicit"][begin : ends[begin]], [begin, 0], rank
            )
            for begin in begins
        ]
        model = {
            "explicit": sharded_tensor.init_from_local_shards(shards, 8, 3),
            "row": distribute_tensor(full["row"], line, [Shard(0)]),
            "col": distribute_tensor(full["col"], line, [Shard(1)]),
            "two": distribute_tensor(full["two"], grid, [Shard(0), Shard(1)]),
            "replicated": distribute_tensor(full["replicated"], line, [Replicate()]),
            "few": distribute_tensor(full["few"], line, [Shard(0)]),
            "bf16": distribute_tensor(full["bf16"], grid, [Replicate(), Shard(0)]),
        }
        options = {"threads": {"thread_count": 2}, "files": FILES_OF_ITEMS}
        writer = dcp.FileSystemWriter(folder / kind, **options.get(kind, {}))
        state = {"m": model, "plain": full["plain"], "epoch": 4}
        quietly(dcp.save, state, storage_writer=writer, use_collectives=kind != "per rank")


WHOLE_KINDS = ["plain", "threads", "files"]


@pytest.fixture(scope="module")
def rank_checkpoints(tmp_path_factory):
    """A folder with a checkpoint of four ranks per kind, all from one run of the ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run_on_ranks(save_on_ranks, folder, [*WHOLE_KINDS, "per rank"], timeout=1200)
    return folder


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_shards_of_four_ranks_become_whole_tensors(admin, dump, rank_checkpoints, tmp_path, kind):
    imported(admin, tmp_path / "s", rank_checkpoints / kind)
    state = read(tmp_path / "s")
    assert state.pop("epoch") == 4
    found = {**state.pop("m"), **state}
    assert_same({name: found[name] for name in whole()}, whole())
    assert len(found) == len(whole())
    assert dump("verify", tmp_path / "s").status == 0


def test_checkpoints_of_single_ranks_are_named_one_by_one(program, rank_checkpoints, tmp_path):
    checkpoint = rank_checkpoints / "per rank"
    assert "use_collectives=False" in refused(program, tmp_path / "s", checkpoint)
    # The file of a rank lists only its own chunks, which do not cover the sharded tensors.
    assert "chunks hold" in refused(program, tmp_path / "s", checkpoint / "__0.metadata")


def test_a_rank_without_shards_is_imported_from_its_own_metadata(admin, tmp_path):
    save_dcp({"a": torch.ones(2)}, tmp_path / "d")
    (tmp_path / "d" / ".metadata").rename(tmp_path / "d" / "__0.metadata")
    imported(admin, tmp_path / "s", tmp_path / "d" / "__0.metadata")
    assert_same(read(tmp_path / "s"), {"a": torch.ones(2)})


class Custom:
    def __init__(self, value):
        self.value = value


def test_values_of_unknown_classes_are_named_or_left_out(admin, tmp_path):
    save_dcp({"w": torch.ones(2), "n": {"custom": Custom(3), "lr": 0.5}}, tmp_path / "d")
    error = refused(admin, tmp_path / "s", tmp_path / "d")
    assert "Custom" in error and "n.custom" in error and "__0_0.distcp" in error
    finished = imported(admin, tmp_path / "s", tmp_path / "d", "--skip-unknown")
    assert "'n.custom' was left out" in finished.err and "Custom" in finished.err
    assert_same(read(tmp_path / "s"), {"w": torch.ones(2), "n": {"lr": 0.5}})


def test_transformed_items_are_refused_by_the_name_of_the_extension(admin, tmp_path):
    class Extension(dcp._extension.StreamTransformExtension):
        @staticmethod
        def registry_name():
            return "stream.test"

        @staticmethod
        def from_descriptor(version):
            return Extension()

        def get_descriptor(self):
            return "stream.test/1"

        def transform_to(self, output):
            return output

        def transform_from(self, input):
            return input

    save_dcp({"w": torch.ones(2)}, tmp_path / "d", _extensions=[Extension()])
    assert "stream.test/1" in refused(admin, tmp_path / "s", tmp_path / "d")


def rewrite(folder, change):
    """Applies `change` to the unpickled metadata of a checkpoint."""
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(change(metadata) or metadata))


def first_place(metadata, **fields):
    info = metadata.storage_data[next(iter(metadata.storage_data))]
    for name, value in fields.items():
        setattr(info, name, value)


def overlap(metadata):
    chunks = metadata.state_dict_metadata["w"].chunks
    chunks.append(chunks[0])


HOSTILE = {
    "parent": lambda m: first_place(m, relative_path="../x.distcp"),
    "absolute": lambda m: first_place(m, relative_path="/etc/passwd"),
    "missing file": lambda m: first_place(m, relative_path="__9_9.distcp"),
    "offset": lambda m: first_place(m, offset=10**15),
    "negative offset": lambda m: first_place(m, offset=-1),
    "length": lambda m: first_place(m, length=2**62),
    "zero length": lambda m: first_place(m, length=0),
    "inside an item": lambda m: first_place(m, offset=7),
    "no place": lambda m: m.storage_data.clear(),
    "no places": lambda m: setattr(m, "storage_data", None),
    "place of another kind": lambda m: setattr(m, "storage_data", dict.fromkeys(m.storage_data, 3)),
    "no items": lambda m: setattr(m, "state_dict_metadata", None),
    "item of another kind": lambda m: m.state_dict_metadata.update(w=3),
    "other shape": lambda m: setattr(m.state_dict_metadata["w"], "size", torch.Size([4, 5])),
    "huge shape": lambda m: setattr(m.state_dict_metadata["w"], "size", torch.Size([2**62, 2**62])),
    "other dtype": lambda m: setattr(m.state_dict_metadata["w"].properties, "dtype", torch.int32),
    "chunk twice": overlap,
    "chunk missing": lambda m: m.state_dict_metadata["w"].chunks.clear(),
    "clashing paths": lambda m: m.planner_data.update(w=("n", "x")),
    "value in a value": lambda m: m.planner_data.update(w=("n", "x", "y")),
    "endless path": lambda m: m.planner_data.update(w=("a",) * 5000),
    "not metadata": lambda m: {"state_dict_metadata": 3},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_metadata_is_refused_and_leaves_no_store(admin, tmp_path, kind):
    save_dcp({"w": torch.randn(4, 6), "n": {"x": 5}}, tmp_path / "d")
    rewrite(tmp_path / "d", HOSTILE[kind])
    refused(admin, tmp_path / "s", tmp_path / "d")


def test_a_list_with_gaps_becomes_a_dict_by_number(admin, tmp_path):
    save_dcp({"l": [torch.ones(1), torch.zeros(1)]}, tmp_path / "d")
    rewrite(tmp_path / "d", lambda m: m.planner_data.update({"l.1": ("l", 10**12)}))
    imported(admin, tmp_path / "s", tmp_path / "d")
    assert_same(read(tmp_path / "s"), {"l": {0: torch.ones(1), 10**12: torch.zeros(1)}})


def test_code_in_the_metadata_is_named_and_never_run(admin, tmp_path):
    save_dcp({"w": torch.ones(2)}, tmp_path / "d")
    ran = tmp_path / "ran"
    rewrite(tmp_path / "d", lambda m: setattr(m.storage_meta, "modules", [Runs(ran)]))
    error = refused(admin, tmp_path / "s", tmp_path / "d")
    assert "posix.system" in error and ".metadata" in error
    assert not ran.exists()


def test_code_in_a_value_is_named_and_never_run(admin, tmp_path):
    ran = tmp_path / "ran"
    save_dcp({"w": torch.ones(2), "v": Runs(ran)}, tmp_path / "d")
    error = refused(admin, tmp_path / "s", tmp_path / "d")
    assert "posix.system" in error and "(key v" in error
    assert not ran.exists()


def test_files_that_were_cut_are_refused(admin, tmp_path):
    save_dcp(nested(), tmp_path / "d")
    for name in (".metadata", "__0_0.distcp"):
        path = tmp_path / "d" / name
        content = path.read_bytes()
        for length in random.Random(1).sample(range(len(content)), 15):
            path.write_bytes(content[:length])
            refused(admin, tmp_path / "s", tmp_path / "d")
        path.write_bytes(content)


def leaves(state):
    """Contents without their keys, which a flipped byte of a key must not change."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return [leaf for value in state for leaf in leaves(value)]
    return [payload(state) if isinstance(state, torch.Tensor) else state]


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_no_flipped_byte_changes_what_is_imported(admin, tmp_path, name):
    state = {"w": torch.randn(4, 6), "n": {"x": [5, "text"]}, "b": random_tensor(torch.bfloat16, 3)}
    save_dcp(state, tmp_path / "d")
    path = tmp_path / "d" / name
    content = path.read_bytes()
    wanted = collections.Counter(map(repr, leaves(state)))
    refused = 0
    for i, at in enumerate(random.Random(2).sample(range(len(content)), 120)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        finished = admin("import", tmp_path / f"s{i}", "--step", 1, tmp_path / "d")
        refused += finished.status == 2
        if finished.status == 0:
            assert collections.Counter(map(repr, leaves(read(tmp_path / f"s{i}")))) == wanted, at
    assert refused > 30
