"""`cairn.torch.StateDictStager`: tensors that are not plain memory, and subclasses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cairn_testing import shares_storage

from cairn.torch import StateDictStager


@pytest.fixture
def stager():
    with StateDictStager() as made:
        yield made


class Scaled(torch.Tensor):
    """A subclass over plain memory, with an attribute."""

    scale: torch.Tensor


class Pair(torch.Tensor):
    """A wrapper subclass."""

    @staticmethod
    def __new__(cls, left: torch.Tensor, right: torch.Tensor) -> Pair:
        made = torch.Tensor._make_wrapper_subclass(cls, left.shape, dtype=left.dtype)
        made.left, made.right = left, right
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["left", "right"], "context"

    @staticmethod
    def __tensor_unflatten__(inner: dict, context: Any, size: Any, stride: Any) -> Pair:
        assert context == "context"
        return Pair(inner["left"], inner["right"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} reached the wrapper")


def test_a_subclass_over_memory_keeps_its_type_and_attributes(stager):
    source = torch.arange(4.0).as_subclass(Scaled)
    source.scale = torch.full((1,), 3.0)
    staged = stager.stage({"s": source, "plain": source.as_subclass(torch.Tensor)})

    assert type(staged["s"]) is Scaled and staged["s"].tolist() == [0, 1, 2, 3]
    assert staged["s"].scale.item() == 3 and not shares_storage(staged["s"].scale, source.scale)
    assert shares_storage(staged["s"], staged["plain"])


def test_a_wrapper_is_made_anew_around_staged_parts(stager):
    left = torch.arange(4.0)
    source = Pair(left, left[:2])
    source.note = "kept"
    staged = stager.stage([source, left])

    assert type(staged[0]) is Pair and staged[0].note == "kept"
    assert staged[0].left is staged[1] and shares_storage(staged[0].right, staged[1])
    assert stager.copy_count == 1


@pytest.fixture
def one_rank(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield dist
    dist.destroy_process_group()


def test_a_dtensor_keeps_its_mesh_and_placements(stager, one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1, 1))
    source = distribute_tensor(torch.arange(12.0).reshape(3, 4), mesh, [Shard(0), Replicate()])
    parameter = torch.nn.Parameter(source)
    staged = stager.stage({"d": source, "p": parameter})

    assert isinstance(staged["d"], DTensor) and staged["d"].placements == source.placements
    assert staged["d"].device_mesh is mesh and staged["d"].shape == (3, 4)
    local = staged["d"].to_local()
    assert torch.equal(local, source.to_local()) and not shares_storage(local, source.to_local())
    assert shares_storage(staged["p"].to_local(), local)
    assert staged["p"].requires_grad and isinstance(staged["p"], torch.nn.Parameter)
    with torch.no_grad():
        source.zero_()
    assert local.sum() == 66


def test_a_sharded_tensor_keeps_its_metadata_and_gets_staged_shards(stager, one_rank):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu"])
    source = sharded_tensor.rand(spec, 6, 4)
    staged = stager.stage({"s": source})["s"]

    assert type(staged) is type(source) and staged.metadata() == source.metadata()
    (shard,), (want,) = staged.local_shards(), source.local_shards()
    assert shard.metadata == want.metadata and torch.equal(shard.tensor, want.tensor)
    assert not shares_storage(shard.tensor, want.tensor)
    del staged, shard
    assert source.local_shards()[0].tensor.shape == (6, 4)


def test_tensors_that_are_no_strided_memory(stager):
    complex_source = torch.randn(4, dtype=torch.complex64)
    indices = torch.tensor([[0, 2], [1, 0]])
    values = torch.tensor([3.0, 4.0])
    sparse = torch.sparse_coo_tensor(indices, values, (3, 3), check_invariants=True).coalesce()
    quantized = torch.quantize_per_tensor(torch.randn(5), 0.1, 2, torch.qint8)
    state = {
        "meta": torch.empty(3, device="meta"),
        "conj": complex_source.conj(),
        "neg": torch._neg_view(torch.arange(3.0)),
        "sparse": sparse,
        "quantized": quantized,
        "grown": (torch.ones(3, requires_grad=True) * 2),
        "empty": torch.empty(0, 3),
    }
    staged = stager.stage(state)

    assert staged["meta"] is state["meta"]
    assert staged["conj"].is_conj() and torch.equal(staged["conj"], complex_source.conj())
    assert staged["neg"].is_neg() and staged["neg"].tolist() == [0, -1, -2]
    assert torch.equal(staged["sparse"].to_dense(), sparse.to_dense())
    assert staged["sparse"].values().data_ptr() != sparse.values().data_ptr()
    assert torch.equal(staged["quantized"].int_repr(), quantized.int_repr())
    assert not staged["grown"].requires_grad and staged["grown"].tolist() == [2, 2, 2]
    assert staged["empty"].shape == (0, 3)
