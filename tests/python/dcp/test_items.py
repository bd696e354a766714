"""Tensors and plain values, saved and loaded by one process: files and Cairn are equivalent."""

from __future__ import annotations

import math
import warnings
from collections import OrderedDict

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn._base import dtypes
from cairn_testing import assert_same, random_tensor
from storages import CAIRN, FILES, Storage, errors_of, failures_of
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys


def dcp_takes(dtype: torch.dtype) -> bool:
    """Whether dcp's planner knows the size of an element; it does not for torch.int4 and
    similar."""
    try:
        return torch._utils._element_size(dtype) > 0
    except TypeError:
        return False


ALL_DTYPES = sorted(filter(dcp_takes, dtypes.torch_codes()), key=str)


def blank(state):
    """The same state with other contents."""
    if isinstance(state, dict):
        return type(state)((key, blank(value)) for key, value in state.items())
    if isinstance(state, list):
        return [blank(value) for value in state]
    if isinstance(state, torch.Tensor):
        return torch.zeros(state.shape, dtype=state.dtype)
    return "?"


def test_tensors_of_every_dtype_come_back_bit_for_bit(storage, path):
    assert len(ALL_DTYPES) >= 20
    state = {str(dtype): random_tensor(dtype, 3, 5) for dtype in ALL_DTYPES}
    storage.save(state, path)
    assert_same(storage.load(blank(state), path), state)


def odd_tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(60.0).view(3, 4, 5)
    return {
        "transposed": base.permute(2, 0, 1),
        "strided": base[:, ::2, 1::3],
        "offset": base[1, 2:],
        "row": base[0, 0],
        "same row": base[0, 0],
        "expanded": torch.arange(3.0).expand(4, 3),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "scalar": torch.tensor(math.pi, dtype=torch.float64),
        "scalar view": base[1, 1, 1],
        "empty": torch.empty(0),
        "empty rows": torch.empty(0, 7),
        "empty columns": torch.empty(7, 0, 2, dtype=torch.int8),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "buffer": torch.nn.parameter.Buffer(torch.randn(3)),
        "result": torch.nn.Parameter(torch.ones(3)) * 2,
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "large": torch.randn(600, 1000),
    }


def test_views_scalars_and_empty_tensors_come_back(storage, path):
    state = odd_tensors()
    storage.save(state, path)
    want = {name: tensor.detach().clone() for name, tensor in state.items()}
    assert_same(storage.load(blank(state), path), want)


def test_a_load_writes_into_the_targets_own_memory_and_nothing_beside_it(storage, path):
    want = torch.arange(12.0).view(3, 4)
    storage.save({"t": want, "p": want, "empty": torch.empty(0, 3)}, path)
    base = torch.full((4, 8), -1.0)
    parameter = torch.nn.Parameter(torch.zeros(3, 4))
    state = {"t": base[:3, 1::2], "p": parameter, "empty": torch.empty(0, 3)}
    storage.load(state, path)
    assert torch.equal(base[:3, 1::2], want)
    assert torch.equal(base[:3, ::2], torch.full((3, 4), -1.0)) and (base[3] == -1).all()
    assert state["p"] is parameter and torch.equal(parameter.detach(), want)


CONVERSIONS = [
    (torch.float32, torch.float64),
    (torch.float64, torch.float16),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.float8_e4m3fn),
    (torch.float32, torch.int64),
    (torch.int64, torch.uint8),
    (torch.int32, torch.bool),
    (torch.bool, torch.float32),
    (torch.float32, torch.complex64),
    (torch.complex64, torch.float32),
]


def test_a_target_of_another_dtype_gets_the_values_converted(storage, path):
    values = torch.tensor([[0.0, 1.5, -2.75], [100.25, 3.0, 7.0]])
    state = {f"{a}-{b}": values.to(a) for a, b in CONVERSIONS}
    storage.save(state, path)
    target = {f"{a}-{b}": torch.zeros(3, 2, dtype=b).t() for a, b in CONVERSIONS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the imaginary part is discarded
        storage.load(target, path)
        for a, b in CONVERSIONS:
            assert_same(target[f"{a}-{b}"], values.to(a).to(b), f"{a} to {b}")


VALUES = {
    "none": None,
    "true": True,
    "int": -7,
    "big": -(2**200),
    "float": 0.1,
    "nan": math.nan,
    "minus zero": -0.0,
    "infinity": -math.inf,
    "complex": 1.5 - 2j,
    "text": "läuft \U0001f600 \x00\n",
    "no text": "",
    "bytes": b"\x80\x04PK\x03\x04",
    "list": [1, "two", 3.0, None, [4, [5]], (6,)],
    "no list": [],
    "tuple": (0.9, 0.95),
    "nested tuple": ((1, 2), [3, (4, [5])], ()),
    "set of": {"lr": 1e-3, "betas": (0.9, 0.999), "params": [0, 1, 2]},
    "dicts in a tuple": ({"a": 1}, {"b": (2, {"c": None})}),
    "size": torch.Size([2, 3]),
    "ordered": OrderedDict(b=1, a=2),
}


def test_plain_values_come_back_with_their_types(storage, path):
    storage.save(VALUES, path)
    assert_same(storage.load(blank(VALUES), path), VALUES)


NESTED = {
    "model": {"a.b": torch.ones(2), "a": {"c": torch.zeros(3), "d": [1, 2]}},
    "optim": {
        "state": {"0": {"exp_avg": torch.arange(4.0), "step": torch.tensor(3.0)}, "1": {}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}, {"lr": 0.2}],
    },
    "tensors": [torch.ones(1), torch.zeros(2), 5],
    "deep": [[[torch.ones(1)], {"x": [torch.ones(2)]}], 7],
    "epoch": 3,
}


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "nested"])
def test_nested_states_come_back(storage, path, flat):
    state = NESTED if flat else {**NESTED, "tuple": (torch.ones(2), [torch.zeros(1)], 3)}
    # The planners' copies for sharded tensors drop empty dicts, and a nested one never reaches the
    # caller's dict.
    options = {"flatten_state_dict": flat, "flatten_sharded_tensors": flat}
    metadata = storage.save(state, path, planner=DefaultSavePlanner(**options))
    want_keys = flatten_state_dict(state)[0].keys() if flat else state.keys()
    assert set(metadata.state_dict_metadata) == set(want_keys)
    assert_same(storage.load(blank(state), path, planner=DefaultLoadPlanner(**options)), state)


def test_backslashes_in_keys_are_kept(storage, path):
    state = {"a\\b": torch.ones(2), "n": {"x\\.y": torch.zeros(3), "v\\": 3}}
    state["n\\x"] = [np.ones(2)]
    storage.save(state, path)
    assert_same(storage.load(blank(state), path), state)


def test_a_save_replaces_the_checkpoint_that_is_there(storage, path):
    storage.save({"a": torch.zeros(3), "old": 1}, path)
    storage.save({"a": torch.ones(4), "new": 2}, path)
    got = storage.load({"a": torch.zeros(4), "new": 0}, path)
    assert_same(got, {"a": torch.ones(4), "new": 2})
    assert failures_of(storage.load, {"old": 0}, path) == {0: "RuntimeError"}


def test_the_metadata_that_save_returns_is_what_a_reader_gives(storage, path):
    state = {**NESTED, **odd_tensors(), **VALUES}
    saved = storage.save(state, path)
    reader = storage.reader(path)
    read = reader.read_metadata()
    assert list(read.state_dict_metadata) == list(saved.state_dict_metadata)
    for fqn, entry in saved.state_dict_metadata.items():
        got = read.state_dict_metadata[fqn]
        assert got == entry and type(got) is type(entry), fqn
        if isinstance(entry, TensorStorageMetadata):
            assert type(got.size) is torch.Size and type(got.chunks[0].offsets) is torch.Size
            assert type(got.properties) is type(entry.properties)
    assert read.planner_data == saved.planner_data
    assert all(type(path) is tuple for path in read.planner_data.values())
    assert (read.storage_data, read.version) == (saved.storage_data, saved.version)
    assert str(read.storage_meta.checkpoint_id) == str(saved.storage_meta.checkpoint_id)
    assert read.storage_meta.save_id == saved.storage_meta.save_id is not None
    assert read.storage_meta.load_id == reader.load_id if hasattr(reader, "load_id") else True


def test_the_metadata_say_the_same_on_files_and_on_cairn(path):
    state = {**NESTED, **odd_tensors(), **VALUES}
    files = FILES.save(state, path / "files")
    cairn = CAIRN.save(state, path / "cairn")
    assert files.state_dict_metadata == cairn.state_dict_metadata
    assert files.planner_data == cairn.planner_data
    assert files.version == cairn.version
    assert isinstance(cairn.state_dict_metadata["epoch"], BytesStorageMetadata)


# Parts, and what does not fit ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        None,
        "epoch",
        "model",
        "optim.state.0",
        {"tensors", "epoch"},
        {"optim.param_groups.0.lr"},
        {"nothing of this name"},
    ],
    ids=lambda keys: str(sorted(keys) if isinstance(keys, set) else keys),
)
def test_states_made_from_keys_are_those_of_files(tmp_path, keys):
    results = []
    for storage in (FILES, CAIRN):
        storage.save(NESTED, tmp_path / storage.name)
        reader = storage.reader(tmp_path / storage.name)
        results.append(_load_state_dict_from_keys(keys, storage_reader=reader))
    assert_same(results[1], results[0])
    if keys is None:
        optim = dict(NESTED["optim"], state={"0": NESTED["optim"]["state"]["0"]})
        assert_same(results[0], {**NESTED, "optim": optim})


def test_a_missing_key_is_an_error_unless_a_partial_load_is_allowed(storage, path):
    storage.save({"a": torch.ones(2), "n": 1}, path)
    for missing in ({"b": torch.zeros(2)}, {"m": 0}, {"a": {"c": torch.zeros(2)}}):
        assert failures_of(storage.load, {"n": 0, **missing}, path) == {0: "RuntimeError"}
    target = {"a": torch.zeros(2), "b": torch.full((2,), 7.0), "n": 0, "m": "kept"}
    storage.load(target, path, planner=DefaultLoadPlanner(allow_partial_load=True))
    want = {"a": torch.ones(2), "b": torch.full((2,), 7.0), "n": 1, "m": "kept"}
    assert_same(target, want)


def test_a_value_replaces_a_tensor_of_the_target(storage, path):
    storage.save({"n": 5}, path)
    assert storage.load({"n": torch.zeros(2)}, path) == {"n": 5}


def test_loading_what_is_not_there_fails_alike(storage, path):
    assert failures_of(storage.load, {"a": 1}, path) == {0: "AssertionError"}
    errors = errors_of(storage.load, {"a": 1}, path)
    assert str(path) in str(errors[0])
    assert not path.exists(), "a failed load makes nothing"


# Where --------------------------------------------------------------------------------------------


def test_checkpoint_ids_are_texts_and_paths(storage, tmp_path):
    writer, reader = storage.writer(tmp_path / "a"), storage.reader(tmp_path / "a")
    for i, checkpoint_id in enumerate(
        (tmp_path / "b", str(tmp_path / "c" / "deep"), Where(tmp_path))
    ):
        metadata = dcp.save({"n": i}, checkpoint_id=checkpoint_id, storage_writer=writer)
        assert str(metadata.storage_meta.checkpoint_id) == str(checkpoint_id)
        target = {"n": -1}
        dcp.load(target, checkpoint_id=checkpoint_id, storage_reader=reader)
        assert target == {"n": i}
        assert str(reader.checkpoint_id) == str(writer.checkpoint_id)
    assert not (tmp_path / "a").exists()


class Where:
    """A path that only has __fspath__."""

    def __init__(self, folder) -> None:
        self._folder = folder

    def __fspath__(self) -> str:
        return str(self._folder / "where")

    __str__ = __fspath__


def test_which_checkpoint_ids_are_ones(storage: Storage, tmp_path):
    for kind in (storage.writer_type, storage.reader_type):
        assert kind.validate_checkpoint_id(tmp_path / "x")
        assert kind.validate_checkpoint_id(str(tmp_path))
        assert not kind.validate_checkpoint_id("gs://bucket/x")


def test_a_bucket_is_a_checkpoint_id_of_cairn():
    for kind in (CAIRN.writer_type, CAIRN.reader_type):
        assert kind.validate_checkpoint_id("s3://bucket/run@5")
        assert not kind.validate_checkpoint_id("https://host/run")
