"""kv-admin and torch.distributed.checkpoint: imports give the state that was saved."""

import collections
import pathlib
import pickle
import random
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import SerializationFormat

import cairn
from torch_states import admin, program  # noqa: F401 - fixtures
from torch_states import bits, every_dtype, plain_values, raw_bytes, run_python, same


def save(state, path, planner=None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning about a single process
        dcp.save(state, storage_writer=dcp.FileSystemWriter(path, **options), planner=planner)


def import_dcp(admin, store, path, *options):
    finished = admin("import", store, "--step", 1, path, *options)
    assert finished.status == 0, finished.err
    return finished


def read(store, **options):
    with cairn.open(store) as opened:
        return opened.read(**options)


def nested():
    weight = torch.randn(8, 6)
    return {
        "model": {
            "wte.weight": weight,
            "head": weight,
            "layers": [bits(torch.bfloat16, (4, 4)), weight.t()],
        },
        "optimizer": {
            "state": {"0": {"step": torch.tensor(3.0), "exp_avg": torch.randn(5)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0, 1]}],
        },
        "step": 17,
        "rng": [1, 2, 3],
        "name": "run",
        "empty tensor": torch.zeros(0, 3),
    }


def test_a_nested_state_comes_back_as_it_was(program, tmp_path):
    state = nested()
    save(state, tmp_path / "d")
    finished = import_dcp(program, tmp_path / "s", tmp_path / "d")
    assert "warning" not in finished.err
    assert same(read(tmp_path / "s"), state)


def test_every_dtype_and_value(admin, tmp_path):
    # A tuple is one item in DCP; dicts become keys, which are strings.
    state = {"t": every_dtype(), "values": tuple(plain_values().values())}
    save(state, tmp_path / "d")
    import_dcp(admin, tmp_path / "s", tmp_path / "d")
    assert same(read(tmp_path / "s"), state)


@pytest.mark.parametrize(
    "options",
    [
        {"thread_count": 4},
        {"single_file_per_rank": False},
        {"serialization_format": SerializationFormat.SAFETENSORS},
        {"serialization_format": SerializationFormat.SAFETENSORS, "thread_count": 3},
    ],
    ids=str,
)
def test_every_way_of_writing_files(admin, tmp_path, options):
    state = nested()
    if "serialization_format" in options:
        # safetensors does not write shared memory, and writes only row-major tensors.
        state["model"]["head"] = state["model"]["head"].clone()
        state["model"]["layers"][1] = state["model"]["layers"][1].contiguous()
    save(state, tmp_path / "d", **options)
    finished = import_dcp(admin, tmp_path / "s", tmp_path / "d")
    assert same(read(tmp_path / "s"), state)
    assert ("no checksums" in finished.err) == ("serialization_format" in options)


def test_a_flat_state_keeps_its_flat_keys(admin, tmp_path):
    state = {"a.b": torch.ones(2), "n": {"kept": [1, torch.zeros(3)]}}
    save(state, tmp_path / "d", planner=dcp.DefaultSavePlanner(flatten_state_dict=False))
    import_dcp(admin, tmp_path / "s", tmp_path / "d")
    assert same(read(tmp_path / "s"), state)


def test_below_a_prefix(admin, tmp_path):
    save({"a": {"b": torch.ones(2)}}, tmp_path / "d")
    import_dcp(admin, tmp_path / "s", tmp_path / "d", "--prefix", "model")
    assert same(read(tmp_path / "s"), {"model": {"a": {"b": torch.ones(2)}}})


RANKS = """
import os, sys, torch
import torch.distributed as dist, torch.multiprocessing as mp
import torch.distributed.checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

def whole():
    generator = torch.Generator().manual_seed(5)
    def t(*shape):
        return torch.randn(*shape, generator=generator)
    return {"row": t(7, 5), "col": t(6, 11), "two": t(9, 10), "replicated": t(4, 4), "few": t(2, 3),
            "explicit": t(8, 3), "plain": t(3), "bf16": t(16, 8).to(torch.bfloat16)}

def rank(r, folder, *kinds):
    dist.init_process_group("gloo", rank=r, world_size=4, init_method="file://" + folder + "/init")
    line = init_device_mesh("cpu", (4,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    if r == 0: torch.save(whole(), folder + "/whole.pt")
    for kind in kinds: save(r, line, grid, os.path.join(folder, kind), kind)
    dist.barrier()
    dist.destroy_process_group()

def save(r, line, grid, out, kind):
    full = whole()
    # As FSDP1 saves, with explicit boxes. The last rank has two of them and rank 1 has none, except
    # for safetensors, where torch would lose one.
    two = kind != "safetensors"
    begins = {0: [0], 1: [] if two else [3], 2: [5], 3: [6, 3] if two else [6]}[r]
    ends = {0: 3, 5: 6, 6: 8, 3: 5}
    shards = [sharded_tensor.Shard.from_tensor_and_offsets(full["explicit"][b : ends[b]], [b, 0], r)
              for b in begins]
    state = {"m": {
        "explicit": sharded_tensor.init_from_local_shards(shards, 8, 3),
        "row": distribute_tensor(full["row"], line, [Shard(0)]),
        "col": distribute_tensor(full["col"], line, [Shard(1)]),
        "two": distribute_tensor(full["two"], grid, [Shard(0), Shard(1)]),
        "replicated": distribute_tensor(full["replicated"], line, [Replicate()]),
        "few": distribute_tensor(full["few"], line, [Shard(0)]),
        "bf16": distribute_tensor(full["bf16"], grid, [Replicate(), Shard(0)]),
    }, "plain": full["plain"], "epoch": 4}
    options = {"thread_count": 2} if kind == "threads" else {}
    if kind == "files": options = {"single_file_per_rank": False}
    if "safetensors" in kind:
        options = {"serialization_format": dcp.filesystem.SerializationFormat.SAFETENSORS}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(out, **options),
             use_collectives=kind != "per rank")

if __name__ == "__main__":
    import warnings
    warnings.simplefilter("ignore")
    context = mp.get_context("fork")
    ranks = [context.Process(target=rank, args=(r, *sys.argv[1:])) for r in range(4)]
    for p in ranks: p.start()
    for p in ranks: p.join(80)
    sys.exit(any(p.exitcode != 0 for p in ranks))
"""


WHOLE_KINDS = ["plain", "threads", "files", "safetensors"]


@pytest.fixture(scope="module")
def rank_checkpoints(tmp_path_factory):
    """A folder with a checkpoint of four ranks per kind, all from one run of the ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    run_python(RANKS, folder, *WHOLE_KINDS, "safetensors, two chunks", "per rank")
    return folder


@pytest.mark.parametrize("kind", WHOLE_KINDS)
def test_shards_of_four_ranks_become_whole_tensors(admin, dump, rank_checkpoints, tmp_path, kind):
    whole = torch.load(rank_checkpoints / "whole.pt", weights_only=True)
    import_dcp(admin, tmp_path / "s", rank_checkpoints / kind)
    state = read(tmp_path / "s")
    assert state["epoch"] == 4
    assert state["m"].keys() == whole.keys() - {"plain"}
    for key, tensor in whole.items():
        assert same(state["plain"] if key == "plain" else state["m"][key], tensor), key
    assert dump("verify", tmp_path / "s").status == 0


def test_a_chunk_that_torch_lost_is_missed(admin, rank_checkpoints, tmp_path):
    checkpoint = rank_checkpoints / "safetensors, two chunks"
    finished = admin("import", tmp_path / "s", "--step", 1, checkpoint)
    assert finished.status == 2
    assert "keeps only one" in finished.err and "m.explicit" in finished.err
    assert "__3_0.distcp" in finished.err


def test_checkpoints_of_single_ranks_are_named_one_by_one(program, rank_checkpoints, tmp_path):
    checkpoint = rank_checkpoints / "per rank"
    finished = program("import", tmp_path / "s", "--step", 1, checkpoint)
    assert finished.status == 2 and "use_collectives=False" in finished.err
    assert not (tmp_path / "s").exists()
    # The file of a rank lists only its own chunks, which do not cover the sharded tensors.
    finished = program("import", tmp_path / "s", "--step", 1, checkpoint / "__0.metadata")
    assert finished.status == 2 and "chunks hold" in finished.err


def test_a_rank_without_shards_is_imported_from_its_own_metadata(admin, tmp_path):
    save({"a": torch.ones(2)}, tmp_path / "d")
    (tmp_path / "d" / ".metadata").rename(tmp_path / "d" / "__0.metadata")
    import_dcp(admin, tmp_path / "s", tmp_path / "d" / "__0.metadata")
    assert same(read(tmp_path / "s"), {"a": torch.ones(2)})


class Custom:
    def __init__(self, value):
        self.value = value


def test_values_of_unknown_classes_are_named_or_left_out(admin, tmp_path):
    save({"w": torch.ones(2), "n": {"custom": Custom(3), "lr": 0.5}}, tmp_path / "d")
    finished = admin("import", tmp_path / "s", "--step", 1, tmp_path / "d")
    assert finished.status == 2
    assert (
        "Custom" in finished.err and "n.custom" in finished.err and "__0_0.distcp" in finished.err
    )
    finished = import_dcp(admin, tmp_path / "s", tmp_path / "d", "--skip-unknown")
    assert "'n.custom' was left out" in finished.err and "Custom" in finished.err
    assert same(read(tmp_path / "s"), {"w": torch.ones(2), "n": {"lr": 0.5}})


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

    save({"w": torch.ones(2)}, tmp_path / "d", _extensions=[Extension()])
    finished = admin("import", tmp_path / "s", "--step", 1, tmp_path / "d")
    assert finished.status == 2 and "stream.test/1" in finished.err


def rewrite(folder, change):
    """Applies `change` to the unpickled metadata of a checkpoint."""
    path = pathlib.Path(folder) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(change(metadata) or metadata))


def first_place(metadata, **fields):
    info = metadata.storage_data[next(iter(metadata.storage_data))]
    for name, value in fields.items():
        setattr(info, name, value)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.path}",)


def overlap(metadata):
    chunks = metadata.state_dict_metadata["w"].chunks
    chunks.append(chunks[0])


HOSTILE = {
    "parent": lambda m: first_place(m, relative_path="../x.distcp"),
    "absolute": lambda m: first_place(m, relative_path="/etc/passwd"),
    "no name": lambda m: first_place(m, relative_path=""),
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
    save({"w": torch.randn(4, 6), "n": {"x": 5}}, tmp_path / "d")
    rewrite(tmp_path / "d", HOSTILE[kind])
    finished = admin("import", tmp_path / "s", "--step", 1, tmp_path / "d")
    assert finished.status == 2
    assert not (tmp_path / "s").exists()


def test_a_list_with_gaps_becomes_a_dict_by_number(admin, tmp_path):
    save({"l": [torch.ones(1), torch.zeros(1)]}, tmp_path / "d")
    rewrite(tmp_path / "d", lambda m: m.planner_data.update({"l.1": ("l", 10**12)}))
    import_dcp(admin, tmp_path / "s", tmp_path / "d")
    assert same(read(tmp_path / "s"), {"l": {0: torch.ones(1), 10**12: torch.zeros(1)}})


def test_code_in_the_metadata_is_named_and_never_run(admin, tmp_path):
    save({"w": torch.ones(2)}, tmp_path / "d")
    ran = tmp_path / "ran"
    rewrite(tmp_path / "d", lambda m: setattr(m.storage_meta, "modules", [Evil(ran)]))
    finished = admin("import", tmp_path / "s", "--step", 1, tmp_path / "d")
    assert finished.status == 2 and "posix.system" in finished.err and ".metadata" in finished.err
    assert not ran.exists()


def test_code_in_a_value_is_named_and_never_run(admin, tmp_path):
    ran = tmp_path / "ran"
    save({"w": torch.ones(2), "v": Evil(ran)}, tmp_path / "d")
    finished = admin("import", tmp_path / "s", "--step", 1, tmp_path / "d")
    assert finished.status == 2 and "posix.system" in finished.err and "(key v" in finished.err
    assert not ran.exists()


def test_files_that_were_cut_are_refused(admin, tmp_path):
    save(nested(), tmp_path / "d")
    for name in (".metadata", "__0_0.distcp"):
        path = tmp_path / "d" / name
        whole = path.read_bytes()
        for length in random.Random(1).sample(range(len(whole)), 15):
            path.write_bytes(whole[:length])
            finished = admin("import", tmp_path / "s", "--step", 1, tmp_path / "d")
            assert finished.status == 2, (name, length)
        path.write_bytes(whole)
    assert not (tmp_path / "s").exists()


def leaves(state):
    """Contents without their keys, which a flipped byte of a key must not change."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        return [leaf for value in state for leaf in leaves(value)]
    return [raw_bytes(state) if isinstance(state, torch.Tensor) else state]


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_no_flipped_byte_changes_what_is_imported(admin, tmp_path, name):
    state = {"w": torch.randn(4, 6), "n": {"x": [5, "text"]}, "b": bits(torch.bfloat16, (3,))}
    save(state, tmp_path / "d")
    path = tmp_path / "d" / name
    whole = path.read_bytes()
    wanted = collections.Counter(map(repr, leaves(state)))
    refused = 0
    for i, at in enumerate(random.Random(2).sample(range(len(whole)), 120)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        finished = admin("import", tmp_path / f"s{i}", "--step", 1, tmp_path / "d")
        refused += finished.status == 2
        if finished.status == 0:
            assert collections.Counter(map(repr, leaves(read(tmp_path / f"s{i}")))) == wanted, at
    assert refused > 30
