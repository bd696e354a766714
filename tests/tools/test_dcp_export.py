"""kv-admin and torch.distributed.checkpoint: exports are what dcp.save would have written."""

import collections
import shutil
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same, wait_until
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from tool_programs import BIN_DIR, into_store, peak_memory
from torch_states import admin, program  # noqa: F401 - fixtures
from torch_states import (
    every_dtype,
    exported,
    imported,
    nested,
    no_room,
    plain_values,
    quietly,
    read,
    save_dcp,
)


def load(path):
    """The state that is in a checkpoint, read from its files alone."""
    return quietly(_load_state_dict_from_keys, None, storage_reader=dcp.FileSystemReader(path))


def metadata_of(path):
    return dcp.FileSystemReader(path).read_metadata()


def listed(folder):
    return sorted(path.name for path in folder.iterdir())


def trained():
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 8)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}


def containers():
    """Each kind of container, with a tensor, a dict, a plain value or nothing in it."""
    return {
        "tuple": (torch.ones(2), {"a": torch.zeros(2)}, 3),
        "tuples in a list": [(torch.ones(2), 1), (2,)],
        "lists in a tuple": ([torch.ones(2)], [1]),
        "lists in a list": [[[1]], [[torch.ones(1)]], [2]],
        "ordered": collections.OrderedDict(b=torch.ones(1), a=collections.OrderedDict(c=1)),
        "counter": collections.Counter("aab"),
        "size": torch.Size([2, 3]),
        "no list": [],
        "no tuple": (),
        "no dict": {},
        "none": None,
    }


STATES = {
    "nested": nested,
    "trained": trained,
    "dtypes": every_dtype,
    "values": plain_values,
    "containers": containers,
    "keys": lambda: {
        0: torch.ones(1),
        "a": {1: {2: [torch.ones(2)]}, True: 1.5, None: (), -3.25: 0},  # noqa: F601
    },
    "dots": lambda: {"a.b": {"c.": torch.ones(2)}, "a": {"b.d": 1, "": 2}},
    "no tensor": lambda: {"a": 1, "b": [2, 3]},
}


@pytest.mark.parametrize("kind", STATES)
def test_a_step_becomes_what_dcp_save_would_write(admin, tmp_path, kind):
    state = STATES[kind]()
    save_dcp(state, tmp_path / "torch")
    into_store(tmp_path / "s", state)
    assert exported(admin, tmp_path / "s", tmp_path / "ours.dcp").err == ""

    assert listed(tmp_path / "ours.dcp") == [".metadata", "__0_0.distcp"]
    ours, theirs = metadata_of(tmp_path / "ours.dcp"), metadata_of(tmp_path / "torch")
    assert list(ours.state_dict_metadata) == list(theirs.state_dict_metadata)
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data
    assert ours.version == theirs.version
    assert ours.storage_data.keys() == theirs.storage_data.keys()
    for ours_index in ours.storage_data:
        (their_index,) = (index for index in theirs.storage_data if index == ours_index)
        assert vars(ours_index) == vars(their_index)
    assert_same(load(tmp_path / "ours.dcp"), load(tmp_path / "torch"))
    # And it is imported again as one of torch.
    for name in ("torch", "ours.dcp"):
        again = imported(admin, tmp_path / f"of {name}", tmp_path / name)
        assert "warning" not in again.err
    assert_same(read(tmp_path / "of ours.dcp"), read(tmp_path / "of torch"))


def test_items_are_adjacent_and_each_is_a_torch_save_file(admin, tmp_path):
    state = nested()
    into_store(tmp_path / "s", state)
    exported(admin, tmp_path / "s", tmp_path / "o.dcp")
    metadata = metadata_of(tmp_path / "o.dcp")
    raw = (tmp_path / "o.dcp" / "__0_0.distcp").read_bytes()
    places = sorted(metadata.storage_data.items(), key=lambda item: item[1].offset)
    at = 0
    for index, place in places:
        assert place.offset == at and place.transform_descriptors is None
        at += place.length
        (tmp_path / "item.pt").write_bytes(raw[place.offset : at])
        item = torch.load(tmp_path / "item.pt", weights_only=True, mmap=True)
        assert isinstance(item, torch.Tensor) == (index.offset is not None)
    assert at == len(raw)
    # The values come first, as in torch's files.
    kinds = [index.offset is not None for index, _ in places]
    assert kinds == sorted(kinds)


def test_several_files_of_a_bounded_size(admin, tmp_path):
    state = {f"w{i}": torch.full((256,), float(i)) for i in range(10)}
    state.update(big=torch.arange(5000.0), n=3)
    into_store(tmp_path / "s", state)
    finished = exported(admin, tmp_path / "s", tmp_path / "o.dcp", "--shard-size", 4096)
    assert_same(load(tmp_path / "o.dcp"), state)
    files = sorted((tmp_path / "o.dcp").glob("*.distcp"))
    assert [path.name for path in files] == [f"__0_{n}.distcp" for n in range(4)]
    assert all(str(path) in finished.out for path in files) and ".metadata" in finished.out
    held = collections.Counter()
    for index, place in metadata_of(tmp_path / "o.dcp").storage_data.items():
        if index.offset is not None:
            held[place.relative_path] += state[index.fqn].nbytes
    assert sorted(held.values()) == [2048, 4096, 4096, 20000]
    imported(admin, tmp_path / "t", tmp_path / "o.dcp")
    assert_same(read(tmp_path / "t"), state)


def test_tensors_that_share_memory_are_items_of_their_own(admin, tmp_path):
    big = torch.arange(100_000.0)
    ints = big.view(torch.int32)[2:5]
    state = {"slice": big[70:90:7], "head": big[:4], "again": big[:4], "ints": ints}
    into_store(tmp_path / "s", state)
    exported(admin, tmp_path / "s", tmp_path / "o.dcp")
    assert_same(load(tmp_path / "o.dcp"), state)
    # Only the elements, not the memory that they are part of.
    assert (tmp_path / "o.dcp" / "__0_0.distcp").stat().st_size < 20_000


def test_tensors_in_a_tuple_share_their_storage_again(admin, tmp_path):
    weight = torch.randn(4, 4)
    state = {"pair": (weight, weight.t()), "alone": weight}
    into_store(tmp_path / "s", state)
    exported(admin, tmp_path / "s", tmp_path / "o.dcp")
    loaded = load(tmp_path / "o.dcp")
    assert_same(loaded, state)
    first, second = loaded["pair"]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def test_patterns_choose(program, tmp_path):
    state = nested()
    into_store(tmp_path / "s", state)
    words = ("model", "layers", "!model.row", "!layers.0")
    exported(program, tmp_path / "s", tmp_path / "o.dcp", *words)
    # A list that lost elements becomes a dict by index in a step, and by string keys in DCP.
    layers = {"1": state["layers"][1], "2": state["layers"][2]}
    model = {key: value for key, value in state["model"].items() if key != "row"}
    assert_same(load(tmp_path / "o.dcp"), {"model": model, "layers": layers})
    words = "export", tmp_path / "s", tmp_path / "none.dcp", "absent"
    assert "no tensor matches" in program(*words, status=2).err
    assert not (tmp_path / "none.dcp").exists()


def test_the_format_is_chosen_by_name_or_option(program, tmp_path):
    into_store(tmp_path / "s", {"a": torch.ones(2)})
    exported(program, tmp_path / "s", tmp_path / "deep" / "step-1", "--format", "dcp")
    assert_same(load(tmp_path / "deep" / "step-1"), {"a": torch.ones(2)})
    exported(program, tmp_path / "s", f"{tmp_path}/slash.dcp/")
    assert_same(load(tmp_path / "slash.dcp"), {"a": torch.ones(2)})
    exported(program, tmp_path / "s", tmp_path / "file.dcp", "--format", "torch")
    assert_same(torch.load(tmp_path / "file.dcp", weights_only=True), {"a": torch.ones(2)})
    exported(program, tmp_path / "s", tmp_path / "flat.dcp", "--format", "safetensors")
    assert listed(tmp_path / "flat.dcp") == ["model.safetensors"]
    words = "export", tmp_path / "s", tmp_path / "x", "--format", "zarr"
    assert "zarr" in program(*words, status=2).err and not (tmp_path / "x").exists()


def test_the_same_step_gives_the_same_bytes(admin, tmp_path):
    into_store(tmp_path / "s", nested())
    for name in ("a.dcp", "b.dcp"):
        exported(admin, tmp_path / "s", tmp_path / name)
    for name in listed(tmp_path / "a.dcp"):
        assert (tmp_path / "a.dcp" / name).read_bytes() == (tmp_path / "b.dcp" / name).read_bytes()


def test_a_directory_that_holds_something_is_refused(program, tmp_path):
    into_store(tmp_path / "s", {"a": torch.ones(2)})
    (tmp_path / "o.dcp").mkdir()
    exported(program, tmp_path / "s", tmp_path / "o.dcp")  # an empty directory is accepted
    before = {name: (tmp_path / "o.dcp" / name).read_bytes() for name in listed(tmp_path / "o.dcp")}
    assert "--overwrite" in program("export", tmp_path / "s", tmp_path / "o.dcp", status=2).err
    assert before == {name: (tmp_path / "o.dcp" / name).read_bytes() for name in before}

    (tmp_path / "file.dcp").write_bytes(b"")
    words = "export", tmp_path / "s", tmp_path / "file.dcp", "--overwrite"
    assert "file.dcp" in program(*words, status=2).err


def test_overwrite_replaces_the_checkpoint_and_nothing_else(admin, tmp_path):
    save_dcp({"old": torch.ones(3)}, tmp_path / "o.dcp")
    (tmp_path / "o.dcp" / "__3_0.distcp").write_bytes(b"of another rank")
    (tmp_path / "o.dcp" / "notes.txt").write_text("kept")
    into_store(tmp_path / "s", {"new": torch.zeros(2)})
    exported(admin, tmp_path / "s", tmp_path / "o.dcp", "--overwrite")
    assert_same(load(tmp_path / "o.dcp"), {"new": torch.zeros(2)})
    # A file of the old checkpoint is never overwritten; it is removed after it has been replaced.
    assert listed(tmp_path / "o.dcp") == [".metadata", "__0_1.distcp", "notes.txt"]
    exported(admin, tmp_path / "s", tmp_path / "o.dcp", "--overwrite")
    assert listed(tmp_path / "o.dcp") == [".metadata", "__0_0.distcp", "notes.txt"]
    assert_same(load(tmp_path / "o.dcp"), {"new": torch.zeros(2)})


@pytest.mark.parametrize("shard_size", ["5GB", "512KiB"])
def test_an_export_that_runs_out_of_room_leaves_nothing(admin, tmp_path, shard_size):
    state = {f"a{i}": torch.ones(100_000) for i in range(3)}
    into_store(tmp_path / "s", {**state, "big": torch.ones(1 << 20)})
    target = tmp_path / "new" / "o.dcp"
    words = "export", tmp_path / "s", target, "--shard-size", shard_size
    assert "cannot write" in admin(*words, status=2, preexec_fn=no_room).err
    assert not (tmp_path / "new").exists()

    save_dcp({"old": torch.ones(3)}, target)
    before = listed(target)
    admin(*words, "--overwrite", status=2, preexec_fn=no_room)
    assert listed(target) == before
    assert_same(load(target), {"old": torch.ones(3)})


def test_an_export_that_is_killed_leaves_the_old_checkpoint_or_the_new_one(admin, tmp_path):
    old, new = {"old": torch.ones(3)}, {f"w{i}": torch.full((1 << 20,), float(i)) for i in range(8)}
    into_store(tmp_path / "s", new)
    target = tmp_path / "o.dcp"
    words = "export", tmp_path / "s", target, "--overwrite", "--shard-size", "4MB"
    for count in range(2, 12, 2):  # each starts Python
        shutil.rmtree(target, ignore_errors=True)
        save_dcp(old, target)
        process = subprocess.Popen([BIN_DIR / "kv-admin", *words], stdout=subprocess.DEVNULL)
        # It is killed as soon as it has created that many files.
        wait_until(lambda: process.poll() is not None or len(listed(target)) >= count)
        process.kill()
        process.wait()
        loaded = load(target)
        assert_same(loaded, old if "old" in loaded else new)
    for leftover in ("__0_77.distcp.123.tmp", ".metadata.123.tmp", "__0_99.distcp"):
        (target / leftover).write_bytes(b"half")
    (target / "mine.tmp").write_bytes(b"kept")
    exported(admin, tmp_path / "s", target, "--overwrite")
    assert_same(load(target), new)
    places = metadata_of(target).storage_data.values()
    assert {*listed(target)} == {".metadata", "mine.tmp", *(each.relative_path for each in places)}


def test_more_bytes_than_memory(tmp_path):
    state = {f"w{i}": torch.full((8 << 20,), i, dtype=torch.int32) for i in range(10)}
    into_store(tmp_path / "s", state)
    target = tmp_path / "o.dcp"
    assert peak_memory("export", tmp_path / "s", target) < 300 << 20  # 320 MiB of tensors
    assert_same(load(target), state)
    shutil.rmtree(tmp_path)  # pytest would keep it


@pytest.mark.parametrize("suffix", ["dcp", "pt"])
def test_numpy_arrays_become_tensors_with_a_warning(admin, tmp_path, suffix):
    numpy = pytest.importorskip("numpy")
    into_store(tmp_path / "s", {"array": numpy.arange(3.0), "list": [numpy.float32(2.5)]})
    finished = exported(admin, tmp_path / "s", tmp_path / f"o.{suffix}")
    assert "2 numpy arrays became torch tensors" in finished.err
    found = load(tmp_path / "o.dcp") if suffix == "dcp" else torch.load(tmp_path / "o.pt")
    array = torch.arange(3.0, dtype=torch.float64)
    assert_same(found, {"array": array, "list": [torch.tensor(2.5)]})


REFUSED = {
    "a pickle": ({"a": torch.ones(2), "n": {"set": {1, 2}}}, ["pickled", "n.set"], "!n.set"),
    "a long int": ({"a": torch.ones(2), "long": 1 << 4000}, ["long", "255"], "!long"),
    "one flat key": ({"b": {"c": [1]}, "b.c": 3, "a": torch.ones(2)}, ["two values", "b.c"], "a"),
    "not a dict": ([torch.ones(2)], ["dict"], None),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_dcp_cannot_hold_is_named_and_may_be_left_out(admin, tmp_path, kind):
    state, words, pattern = REFUSED[kind]
    into_store(tmp_path / "s", state, allow_pickle=True)
    (tmp_path / "out").mkdir()
    finished = admin("export", tmp_path / "s", tmp_path / "out" / "o.dcp", status=2)
    assert all(word in finished.err for word in words), finished.err
    assert listed(tmp_path / "out") == []
    if kind == "one flat key":
        with pytest.raises(CheckpointException, match="duplicated flatten key b.c"):
            save_dcp(state, tmp_path / "d")
    if pattern is not None:
        exported(admin, tmp_path / "s", tmp_path / "o.dcp", pattern)
        assert_same(load(tmp_path / "o.dcp"), {"a": torch.ones(2)})
