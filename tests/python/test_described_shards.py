"""Tensors that describe their shards, in native saves and loads: torch's CheckpointableTensor,
which has the fields of shards, LocalShardsWrapper, and objects with torch's methods for shards.

The fields need no version of torch; the protocol and bcomplex32 exist from torch 2.14 on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from cairn.torch import Saver
from ranks import run_on_ranks, with_ranks
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper

import cairn
from cairn.state_dict import gather_state_dict

WHOLE = torch.arange(48.0).reshape(6, 8)
ZEROS = torch.zeros(6, 8)


def fields(whole: torch.Tensor, begin: int, *widths: int) -> torch.Tensor:
    """A tensor with columns of `whole` from `begin` on, one shard per width, and padding."""
    made = torch.full((6, sum(widths) + 2), -1.0)
    inside = [sum(widths[:i]) + (i > 0) for i in range(len(widths))]
    at = [begin + sum(widths[:i]) for i in range(len(widths))]
    for start, offset, width in zip(inside, at, widths):
        made[:, start : start + width] = whole[:, offset : offset + width]
    made.global_shape = tuple(whole.shape)
    made.global_offsets = tuple((0, offset) for offset in at)
    made.local_offsets = tuple((0, start) for start in inside)
    made.local_sizes = tuple((6, width) for width in widths)
    return made


def wrapper(whole: torch.Tensor, begin: int, *widths: int) -> LocalShardsWrapper:
    """Such shards as torchrec's embedding tables have them."""
    at = [begin + sum(widths[:i]) for i in range(len(widths))]
    shards = [whole[:, one : one + width].clone() for one, width in zip(at, widths)]
    return LocalShardsWrapper(shards, [(0, one) for one in at])


KINDS = {"fields": fields, "wrapper": wrapper}
# The first column and the widths of the shards of each of two ranks.
BOTH_HOLD = (0, 2, 3), (5, 3)
BOTH_HOLD_ONE = (0, 3), (0, 3, 5)
ONE_HOLDS = (0, 3, 5), (8,)


def table(kind: str, rank: int, whole: torch.Tensor = WHOLE, held=BOTH_HOLD, ranks: int = 2) -> Any:
    """Ranks 0 and 1 hold shards; other ranks hold copies of them."""
    made = KINDS[kind](whole, *held[rank % 2])
    if kind == "fields":
        return made
    mesh = init_device_mesh("cpu", (ranks,) if ranks == 2 else (ranks // 2, 2))
    return DTensor.from_local(
        made, mesh, [Replicate()] * (mesh.ndim - 1) + [Shard(1)],
        run_check=False, shape=whole.size(), stride=whole.stride(),
    )  # fmt: skip


def shards_of(value: Any) -> list[torch.Tensor]:
    local = value._local_tensor if isinstance(value, DTensor) else value
    return local.local_shards() if isinstance(local, LocalShardsWrapper) else [local]


def assert_filled(value: Any, want: Any) -> None:
    for ours, theirs in zip(shards_of(value), shards_of(want), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_of_one_process_are_the_complete_tensor_and_are_filled_in_place(store, kind):
    store.save(1, {"table": KINDS[kind](WHOLE, 0, 3, 5)})

    assert torch.equal(store.read()["table"], WHOLE)
    target = KINDS[kind](ZEROS, 0, 1, 4, 3)
    memory = [shard.data_ptr() for shard in shards_of(target)]
    store.load({"table": target})
    assert_filled(target, KINDS[kind](WHOLE, 0, 1, 4, 3))
    assert [shard.data_ptr() for shard in shards_of(target)] == memory


def test_wrong_fields_and_dtypes_and_the_meta_device_are_refused(store):
    for change in (
        {"global_offsets": ((0, 7),)},
        {"local_sizes": ((6, 9),)},
        {"local_offsets": ((0, -1),)},
        {"local_offsets": ()},
        {"global_shape": (6,)},
    ):
        made = fields(WHOLE, 0, 8)
        vars(made).update(change)
        with pytest.raises(cairn.Invalid, match="wrong fields") as raised:
            store.save(1, {"table": made})
        assert raised.value.key == "table"
    store.save(1, {"table": fields(WHOLE, 0, 8)})
    meta = torch.empty(6, 10, device="meta")
    vars(meta).update(vars(fields(WHOLE, 0, 8)))
    for target in (meta, LocalShardsWrapper([torch.empty(6, 8, device="meta")], [(0, 0)])):
        with pytest.raises(cairn.Invalid, match="meta device"):
            store.load({"table": target})
    store.save(2, {"table": wrapper(WHOLE.bfloat16(), 0, 8)})
    assert store.read()["table"].dtype == torch.bfloat16
    with pytest.raises(cairn.Invalid, match="bfloat16.*float32"):
        store.load({"table": wrapper(WHOLE, 0, 8)})


def save_on_ranks(rank: int, path: Path, kind: str, held: tuple, ranks: int) -> int:
    other = 1 - rank % 2 if kind == "fields" else rank  # ranks swap their shards
    with cairn.open(path, mode="a") as store:
        report = store.save(1, {"table": table(kind, rank, WHOLE, held, ranks)})
        store.save_async(2, {"table": table(kind, rank, WHOLE + 1, held, ranks)}).result()
        for read_once in (False, True):
            target = table(kind, other, ZEROS, held, ranks)
            store.load({"table": target}, step=1, read_once=read_once)
            assert_filled(target, table(kind, other, WHOLE, held, ranks))
    return report.written_bytes


@pytest.mark.parametrize(
    "kind, held, ranks",
    [(kind, BOTH_HOLD, ranks) for kind in KINDS for ranks in (2, 4)]
    + [("fields", BOTH_HOLD_ONE, 2), ("wrapper", ONE_HOLDS, 2)],
)
def test_ranks_save_and_load_a_table(path, kind, held, ranks):
    written = run_on_ranks(save_on_ranks, path, kind, held, ranks, world_size=ranks)

    assert sum(written) == WHOLE.nbytes  # copies are written once
    with cairn.open(path) as store:
        assert torch.equal(store.read(step=1)["table"], WHOLE)
        assert torch.equal(store.read(step=2)["table"], WHOLE + 1)


@with_ranks(2)
def test_a_parameter_with_fields_is_saved_resumed_and_gathered(rank, path):
    parameter = torch.nn.Parameter(table("fields", rank))
    vars(parameter).update(vars(table("fields", rank)))
    state = {"table": table("fields", rank), "p": parameter, "plain": WHOLE}
    with cairn.open(path, mode="a") as store, Saver(store, every=1) as saver:
        store.save(1, state)
        assert torch.equal(store.read()["p"], WHOLE)
        given = {"table": table("fields", rank, ZEROS), "p": table("fields", rank, ZEROS)}
        given["plain"] = ZEROS.clone()
        assert saver.resume(given) == 1
        for name, value in given.items():
            assert torch.equal(value, state[name]), name
    assert torch.equal(gather_state_dict({"table": state["table"]})["table"], WHOLE)


needs_protocol = pytest.mark.skipif(
    not hasattr(dcp, "CheckpointableTensor"), reason="this torch has no CheckpointableTensor"
)


@pytest.mark.parametrize("kind", [pytest.param("fields", marks=needs_protocol), "wrapper"])
@with_ranks(2)
def test_dcp_and_native_calls_load_what_the_other_saved(rank, tmp_path, kind):
    assert kind == "wrapper" or isinstance(table(kind, rank), dcp.CheckpointableTensor)
    dcp.save({"table": table(kind, rank)}, storage_writer=CairnWriter(tmp_path / "dcp"))
    with cairn.open(tmp_path / "dcp") as store:
        target = {"table": table(kind, rank, ZEROS)}
        store.load(target)
        assert_filled(target["table"], table(kind, rank))
    with cairn.open(tmp_path / "native", mode="a") as store:
        store.save(1, {"table": table(kind, rank, WHOLE + 1)})
    dcp.load(target, storage_reader=CairnReader(tmp_path / "native"))
    assert_filled(target["table"], table(kind, rank, WHOLE + 1))


class Rows:
    """An object that is not a tensor and describes one shard of rows per rank."""

    total: torch.Size
    begin: int
    rows: torch.Tensor

    @classmethod
    def of(cls, whole: torch.Tensor, begin: int, end: int) -> Rows:
        made = cls.__new__(cls)
        made.total, made.begin, made.rows = whole.size(), begin, whole[begin:end].clone()
        return made

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size([self.begin, 0]), self.rows.size())]

    def __create_write_items__(self, fqn: str, object) -> list[WriteItem]:
        (chunk,) = self.__create_chunk_list__()
        properties = TensorProperties.create_from_tensor(self.rows)
        return [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.total),
            )
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset == torch.Size([self.begin, 0])
        return self.rows


class RowsTensor(Rows, torch.Tensor):
    """Such a tensor: torch's planners accept only tensors."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, WHOLE.size())

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)


@with_ranks(2)
def test_other_objects_describe_their_shards_too(rank, tmp_path):
    begin, end = (0, 4) if rank == 0 else (4, 6)
    dcp.save({"x": RowsTensor.of(WHOLE, begin, end)}, storage_writer=CairnWriter(tmp_path / "dcp"))
    for kind in (Rows, RowsTensor):
        with cairn.open(tmp_path / kind.__name__, mode="a") as store:
            store.save(1, {"x": kind.of(WHOLE, begin, end)})
            target = {"x": kind.of(ZEROS, begin, end)}
            store.load(target)
            assert torch.equal(target["x"].rows, WHOLE[begin:end])
    for name in ("dcp", "Rows", "RowsTensor"):
        with cairn.open(tmp_path / name) as store:
            assert torch.equal(store.read()["x"], WHOLE)
