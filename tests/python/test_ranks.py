"""Multi-rank saves and loads: keys that only some ranks have, ties, groups, meshes of some ranks,
and a model and its optimizer under FSDP2.

`dcp/test_resharding.py` loads every layout into every other, and `dcp/test_wrappers.py` the state
dicts of all wrappers.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from cairn_testing import assert_same
from dtensors import assert_shard, sharded, whole
from ranks import run_on_ranks, with_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import cairn


@with_ranks()
def test_ranks_may_hold_different_keys(rank, path):
    """Pipeline stages, a state per rank, and tensor parallelism in each of two replicas."""
    world = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    stage = {f"stage{rank // 2}": whole("even", rank // 2), "all": whole("uneven")}
    own = {f"rng.{rank}": torch.full((3,), rank), f"number.{rank}": rank}
    parallel = sharded(whole("even", 7), world["tp"], (Shard(0),))
    one_stage = sharded(whole("even", 50 + rank // 2), world["tp"], (Shard(1),))
    big = torch.arange(600_000.0).view(2, -1) + rank // 2 if rank else torch.zeros(2, 5)
    with cairn.open(path, mode="a") as store:
        state = {**stage, **own, "parallel": parallel, f"stage{rank // 2}.parallel": one_stage}
        if rank > 1:
            state["big"] = big
        store.save(1, state)
        for read_once in (False, True):
            target = {
                f"stage{rank // 2}": torch.zeros(8, 4),
                f"stage{rank // 2}.parallel": sharded(torch.zeros(8, 4), world["tp"], (Shard(0),)),
                f"rng.{rank}": torch.zeros(3, dtype=torch.int64),
                "all": torch.zeros(7, 5),
            }
            report = store.load(target, strict=False, read_once=read_once)
            # No rank has asked for these.
            assert report.missing == ()
            unexpected = {"parallel", "big", *(f"number.{i}" for i in range(4))}
            assert set(report.unexpected) == unexpected
            assert torch.equal(target[f"stage{rank // 2}"], whole("even", rank // 2))
            assert torch.equal(target["all"], whole("uneven"))
            assert target[f"rng.{rank}"].tolist() == [rank] * 3
            got = target[f"stage{rank // 2}.parallel"]
            assert_shard(got, whole("even", 50 + rank // 2), world["tp"], (Shard(0),))
            mine = {"parallel": sharded(torch.zeros(8, 4), world["tp"], (Shard(1),))}
            store.load(mine, keys="parallel")
            assert_shard(mine["parallel"], whole("even", 7), world["tp"], (Shard(1),))
    with cairn.open(path) as store:
        got = store.read(flat=True)
        assert sorted(got) == sorted(
            ["stage0", "stage1", "all", "parallel", "stage0.parallel", "stage1.parallel", "big"]
            + [f"{name}.{rank}" for name in ("rng", "number") for rank in range(4)]
        )
        assert torch.equal(got["stage1"], whole("even", 1))
        assert torch.equal(got["stage1.parallel"], whole("even", 51))
        assert torch.equal(got["parallel"], whole("even", 7))
        assert torch.equal(got["big"], torch.arange(600_000.0).view(2, -1) + 1)
        assert [got[f"number.{rank}"] for rank in range(4)] == [0, 1, 2, 3]
        assert got["rng.3"].tolist() == [3, 3, 3]


@with_ranks()
def test_a_tensor_that_differs_is_that_of_one_rank(rank, path):
    """Plain and replicated tensors that should be equal on all ranks, but are not."""
    mesh = init_device_mesh("cpu", (4,))
    replicated = DTensor.from_local(
        torch.full((256, 512), rank), mesh, (Replicate(),), run_check=False
    )
    with cairn.open(path, mode="a") as store:
        state = {f"plain{i}": torch.full((256, 512), 10 * i + rank) for i in range(5)}
        store.save(1, state | {"replicated": replicated},
            tuning=cairn.SaveTuning(chunk_bytes=65536, differing="ignore"))
        assert len(store.keys()) == 6
        for key, got in store.read().items():
            assert len(got.unique()) == 1, key


@with_ranks()
def test_a_mesh_may_hold_some_ranks_only(rank, path):
    """Meshes of three of four ranks; the fourth has the DTensor too, but no part of it."""
    mesh = DeviceMesh("cpu", [0, 2, 3])
    mixed = DeviceMesh("cpu", [3, 0, 2])
    state = {"t": distribute_tensor(whole("uneven"), mesh, (Shard(0),))}
    target = {"t": distribute_tensor(torch.zeros(7, 5), mesh, (Shard(1),))}
    if rank != 1:
        state["m"] = sharded(whole("uneven", 9), mixed, (Shard(0),))
        target["m"] = sharded(torch.zeros(7, 5), mixed, (Shard(1),))
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
        store.load(target, strict=rank != 1)
        if rank != 1:
            assert_shard(target["t"], whole("uneven"), mesh, (Shard(1),))
            assert_shard(target["m"], whole("uneven", 9), mixed, (Shard(1),))
        assert_same(store.read(), {"t": whole("uneven"), "m": whole("uneven", 9)})


@with_ranks()
def test_a_group_of_some_ranks(rank, path):
    group = dist.new_group([1, 3])
    if rank in (0, 2):
        with pytest.raises(cairn.Invalid, match="not in the process group"):
            cairn.open(path, mode="a", process_group=group)
        return
    with cairn.open(path, mode="a", process_group=group) as store:
        mesh = DeviceMesh.from_group(group, "cpu")
        store.save(1, {"t": sharded(whole("uneven"), mesh, (Shard(0),))})
        with cairn.open(path, alone=True) as reader:
            assert (reader.rank, reader.world_size) == (0, 1)
            assert torch.equal(reader.read()["t"], whole("uneven"))
            # Alone, a rank can still load its own part.
            target = sharded(torch.zeros(7, 5), mesh, (Shard(1),))
            reader.load({"t": target})
            assert_shard(target, whole("uneven"), mesh, (Shard(1),))
        assert (store.rank, store.world_size) == (rank // 2, 2)


@with_ranks()
def test_who_saves_alone_must_have_all(rank, path):
    mesh = init_device_mesh("cpu", (4,))
    tensor = sharded(whole("uneven"), mesh, (Shard(0),))
    replica = sharded(whole("uneven"), mesh, (Replicate(),))
    with cairn.open(f"{path}-{rank}", mode="a", alone=True) as store:
        with pytest.raises(cairn.Invalid, match="without alone=True") as refused:
            store.save(1, {"t": tensor})
        assert refused.value.key == "t"
        store.save(1, {"t": replica})
        assert torch.equal(store.read()["t"], whole("uneven"))


@with_ranks()
def test_asynchronous_saves(rank, path):
    mesh = init_device_mesh("cpu", (4,))
    state = {"t": sharded(whole("uneven"), mesh, (Shard(0),)), "n": 0}
    with cairn.open(path, mode="a") as store:
        for step in range(1, 6):
            state["n"] = step
            handle = store.save_async(step, state)
            handle.wait_staged()
            state["t"]._local_tensor.add_(1)
        assert handle.result(60).step == 5
        store.save_async(6, state)
        assert store.delete(2).steps == (2,)
        assert store.prune(keep_last=2).steps == (1, 3, 4)
        assert store.steps() == [5, 6]
        # The one that is under way when the store is closed is finished.
        store.save_async(7, state)
    with cairn.open(path) as store:
        assert store.steps() == [5, 6, 7]
        assert_same(store.read(step=5), {"t": whole("uneven") + 4, "n": 5})


@with_ranks(2)
def test_results_of_functional_collectives(rank, path):
    from torch.distributed import _functional_collectives as collectives

    def waiting():
        return collectives.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)

    plain = waiting()
    assert isinstance(plain, collectives.AsyncCollectiveTensor)
    mesh = init_device_mesh("cpu", (2,))
    inside = DTensor.from_local(waiting(), mesh, (Replicate(),), run_check=False)
    with cairn.open(path, mode="a") as store:
        store.save(1, {"plain": plain, "inside": inside})
        targets = {"plain": torch.zeros(4), "inside": waiting()}
        store.load(targets)
        for got in targets.values():
            assert got.tolist() == [0, 0, 1, 1]
        assert store.read()["plain"].tolist() == [0, 0, 1, 1]


class Net(nn.Module):
    """A model of odd sizes with tied weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6, bias=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        return self.head(self.down(torch.relu(self.up(self.embed(words)))))


def train(model, optimizer) -> None:
    optimizer.zero_grad()
    model(torch.arange(4) + dist.get_rank()).square().sum().backward()
    optimizer.step()


def trained(seed: int, mesh=None) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model under FSDP2 and its optimizer, which has a state."""
    model = Net(seed)
    for part in (model.up, model.down, model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer)
    return model, optimizer


def full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    return dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))


def train_fsdp2(rank, path):
    model, optimizer = trained(1)
    want = full_state(model)
    with cairn.open(path, mode="a") as store:
        state = {"model": model, "optimizer": optimizer, "epoch": 3}
        store.save(1, state)
        store.save_async(2, state).result(60)

        # Resumes on another mesh, in place, and continues with the same results.
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        other, other_optimizer = trained(2, mesh)
        target = {"model": other, "optimizer": other_optimizer, "epoch": 0}
        store.load(target, read_once=True)
        assert target["epoch"] == 3 and target["model"] is other
        assert_same(full_state(other), want)
        train(model, optimizer)
        train(other, other_optimizer)
        torch.testing.assert_close(full_state(other), full_state(model))
    return want


def test_fsdp2_resumes_on_another_mesh(path):
    want = run_on_ranks(train_fsdp2, path)[0]
    # One process, no group: a plain model.
    with cairn.open(path) as store:
        assert store.steps() == [1, 2]
        plain = Net(3)
        store.load(plain, step=2, prefix="model")
        assert_same(dict(plain.state_dict()), want)
        assert plain.head.weight is plain.embed.weight


@with_ranks()
def test_meta_dtensors_get_uneven_shards(rank, path):
    mesh = init_device_mesh("cpu", (2, 2))
    whole = torch.arange(35.0).view(7, 5)
    with cairn.open(path, mode="a") as store:
        store.save(1, {"t": whole, "p": whole + 1, "t0": torch.tensor(4.0)})
        for placements in [(Shard(0), Shard(1)), (Shard(0), Shard(0)), (Shard(1), Shard(1))]:
            meta = distribute_tensor(torch.empty(7, 5, device="meta"), mesh, placements)
            frozen = nn.Parameter(meta, requires_grad=False)
            tied = nn.Parameter(torch.empty(7, 5, device="meta"))
            state = {"t": meta, "p": frozen, "t0": torch.empty((), device="meta")}
            store.load(state)
            want = distribute_tensor(whole, mesh, placements)
            assert torch.equal(state["t"]._local_tensor, want._local_tensor)
            assert state["t"].stride() == meta.stride() and state["t"].shape == meta.shape
            assert type(state["p"]) is nn.Parameter or isinstance(state["p"], DTensor)
            assert isinstance(state["p"], nn.Parameter) and not state["p"].requires_grad
            assert torch.equal(state["p"].full_tensor(), whole + 1)
            assert state["t0"].item() == 4.0
            state = {"t": tied}
            store.load(state, keys="t", device="cpu")
            assert isinstance(state["t"], nn.Parameter) and state["t"].requires_grad
            assert torch.equal(state["t"], whole)
