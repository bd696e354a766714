"""LocalShardsWrapper and other objects that describe their shards, in native saves and loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
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

WHOLE = torch.arange(48.0).reshape(6, 8)


def columns(whole: torch.Tensor, begin: int, *widths: int) -> LocalShardsWrapper:
    """Column-wise shards, as torchrec's embedding tables have them."""
    shards, offsets = [], []
    for width in widths:
        shards.append(whole[:, begin : begin + width].clone())
        offsets.append((0, begin))
        begin += width
    return LocalShardsWrapper(shards, offsets)


BOTH_HOLD = (0, 2, 3), (5, 3)
"""The first column and the widths of the shards of each of two ranks."""
ONE_HOLDS = (0, 3, 5), (8,)


def table(rank: int, whole: torch.Tensor, ranks: int = 2, held=BOTH_HOLD) -> DTensor:
    """Ranks 0 and 1 hold shards; other ranks hold copies of them."""
    shape = (2,) if ranks == 2 else (ranks // 2, 2)
    mesh = init_device_mesh("cpu", shape)
    local = columns(whole, *held[rank % 2])
    placements = [Replicate()] * (len(shape) - 1) + [Shard(1)]
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=whole.size(), stride=whole.stride()
    )


def shards_of(value) -> list[torch.Tensor]:
    local = value._local_tensor if isinstance(value, DTensor) else value
    return local.local_shards()


def assert_filled(value, want) -> None:
    for ours, theirs in zip(shards_of(value), shards_of(want)):
        assert torch.equal(ours, theirs)
    assert len(shards_of(value)) == len(shards_of(want))


def test_a_wrapper_alone_is_one_tensor(store):
    store.save(1, {"table": columns(WHOLE, 0, 3, 5)})

    assert torch.equal(store.read()["table"], WHOLE)
    target = {"table": columns(torch.zeros(6, 8), 0, 1, 4, 3)}
    memory = [shard.data_ptr() for shard in shards_of(target["table"])]
    store.load(target)
    assert_filled(target["table"], columns(WHOLE, 0, 1, 4, 3))
    assert [shard.data_ptr() for shard in shards_of(target["table"])] == memory


def test_the_dtype_is_that_of_the_shards(store):
    whole = WHOLE.to(torch.bfloat16)
    store.save(1, {"table": columns(whole, 0, 8)})

    assert store.read()["table"].dtype == torch.bfloat16
    with pytest.raises(cairn.Invalid, match="bfloat16.*float32"):
        store.load({"table": columns(WHOLE, 0, 8)})


def test_shards_on_the_meta_device_are_refused(store):
    store.save(1, {"table": columns(WHOLE, 0, 8)})
    meta = LocalShardsWrapper([torch.empty(6, 8, device="meta")], [(0, 0)])

    with pytest.raises(cairn.Invalid, match="meta device"):
        store.load({"table": meta})


def save_on_ranks(rank: int, path: Path, *of_table) -> int:
    with cairn.open(path, mode="a") as store:
        report = store.save(1, {"table": table(rank, WHOLE, *of_table)})
        target = {"table": table(rank, torch.zeros(6, 8), *of_table)}
        store.load(target)
        assert_filled(target["table"], table(rank, WHOLE, *of_table))
    return report.written_bytes


@pytest.mark.parametrize("ranks, held", [(2, BOTH_HOLD), (4, BOTH_HOLD), (2, ONE_HOLDS)])
def test_ranks_save_and_load_a_table(path, ranks, held):
    written = run_on_ranks(save_on_ranks, path, ranks, held, world_size=ranks)

    assert sum(written) == 4 * WHOLE.numel()  # copies are written once
    with cairn.open(path) as store:
        assert torch.equal(store.read()["table"], WHOLE)


@with_ranks(2)
def test_dcp_and_native_calls_load_what_the_other_saved(rank: int, tmp_path: Path) -> None:
    dcp.save({"table": table(rank, WHOLE)}, storage_writer=CairnWriter(tmp_path / "dcp"))
    with cairn.open(tmp_path / "dcp") as store:
        target = {"table": table(rank, torch.zeros(6, 8))}
        store.load(target)
        assert_filled(target["table"], table(rank, WHOLE))
    with cairn.open(tmp_path / "native", mode="a") as store:
        store.save(1, {"table": table(rank, WHOLE)})
    target = {"table": table(rank, torch.zeros(6, 8))}
    dcp.load(target, storage_reader=CairnReader(tmp_path / "native"))
    assert_filled(target["table"], table(rank, WHOLE))


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
def test_other_objects_describe_their_shards_too(rank: int, tmp_path: Path) -> None:
    begin, end = (0, 4) if rank == 0 else (4, 6)
    dcp.save({"x": RowsTensor.of(WHOLE, begin, end)}, storage_writer=CairnWriter(tmp_path / "dcp"))
    for kind in (Rows, RowsTensor):
        with cairn.open(tmp_path / kind.__name__, mode="a") as store:
            store.save(1, {"x": kind.of(WHOLE, begin, end)})
            target = {"x": kind.of(torch.zeros(6, 8), begin, end)}
            store.load(target)
            assert torch.equal(target["x"].rows, WHOLE[begin:end])
    for name in ("dcp", "Rows", "RowsTensor"):
        with cairn.open(tmp_path / name) as store:
            assert torch.equal(store.read()["x"], WHOLE)
