"""Models and optimizers trained by several ranks: FSDP1, FSDP2, DDP, tensor parallelism."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import run_on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel,
    StateDictType,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import cairn


class Net(nn.Module):
    """A model of odd sizes, with a buffer and tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 6, bias=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, words):
        self.seen += 1
        return self.head(self.down(torch.relu(self.up(self.embed(words)))))


def seeded(seed: int, device: str = "cpu") -> Net:
    torch.manual_seed(seed)
    with torch.device(device):
        return Net()


def train(model, optimizer, rank, steps=2) -> None:
    torch.manual_seed(100 + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randint(11, (4,))).square().sum().backward()
        optimizer.step()


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def full_state(model) -> dict[str, torch.Tensor]:
    return {name: full(value).detach().clone() for name, value in model.state_dict().items()}


def assert_equal(got: dict, want: dict) -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert torch.equal(got[name], want[name]), name


def shard_fully(model, mesh=None):
    fully_shard(model.up, mesh=mesh)
    fully_shard(model.down, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train_fsdp2(rank, path):
    model = shard_fully(seeded(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, rank)
    want = full_state(model)
    state = {"model": model, "optimizer": optimizer, "epoch": 3}
    with cairn.open(path, mode="a") as store:
        store.save(1, state)
        store.save_async(2, state).result(60)

        # Resumes on another mesh, in place, and continues with the same results.
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        other = shard_fully(seeded(2), mesh)
        other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.1)
        train(other, other_optimizer, rank, steps=1)  # so that the optimizer has a state
        target = {"model": other, "optimizer": other_optimizer, "epoch": 0}
        store.load(target, read_once=True)
        assert target["epoch"] == 3 and target["model"] is other
        assert_equal(full_state(other), want)
        train(model, optimizer, rank)
        train(other, other_optimizer, rank)
        for name, value in full_state(other).items():
            torch.testing.assert_close(value, full_state(model)[name])
    return want


def test_fsdp2_resumes_on_another_mesh(path):
    want = run_on_ranks(train_fsdp2, path)[0]
    # One process, no group: a plain model.
    with cairn.open(path) as store:
        assert store.steps() == [1, 2]
        plain = seeded(3)
        store.load(plain, step=2, prefix="model")
        assert_equal(full_state(plain), want)
        assert plain.head.weight is plain.embed.weight


def load_into_meta(rank, path):
    """The load allocates the memory of all tensors."""
    model = shard_fully(seeded(1))
    want = full_state(model)
    with cairn.open(path, mode="a") as store:
        store.save(1, {"model": model.state_dict()})

        empty = shard_fully(seeded(2, device="meta"))
        state = empty.state_dict()
        assert all(value.is_meta for value in state.values())
        store.load({"model": state})
        for name, value in state.items():
            kept = dict(model.state_dict())[name]
            assert type(value) is type(kept) and value.shape == kept.shape
            if isinstance(value, DTensor):
                assert value.placements == kept.placements and value.stride() == kept.stride()
                assert value._local_tensor.shape == kept._local_tensor.shape
                assert value.device.type == "cpu"
        empty.load_state_dict(state, assign=True)
        assert_equal(full_state(empty), want)
        assert all(parameter.requires_grad for parameter in empty.parameters())
        assert isinstance(empty.up.weight, nn.Parameter)
        # The module itself does that by itself.
        once_more = shard_fully(seeded(2, device="meta"))
        store.load({"model": once_more})
        assert_equal(full_state(once_more), want)
        assert not once_more.up.weight.is_meta


def test_models_on_the_meta_device(path):
    run_on_ranks(load_into_meta, path)


def load_meta_dtensors(rank, path):
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


def test_meta_dtensors_get_uneven_shards(path):
    run_on_ranks(load_meta_dtensors, path)


def train_fsdp1(rank, path, layout):
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (4,)) if layout == "dtensor" else None

    def wrapped(seed):
        net = seeded(seed)
        net.head = nn.Linear(6, 11, bias=False)  # this FSDP cannot tie across units
        return FullyShardedDataParallel(
            net,
            device_mesh=mesh,
            use_orig_params=True,
            auto_wrap_policy=None,
            device_id=torch.device("cpu"),
        )

    model = wrapped(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(model, optimizer, rank)
    FullyShardedDataParallel.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)

    def state_of(of_model, of_optimizer):
        return {
            "model": of_model.state_dict(),
            "optimizer": FullyShardedDataParallel.optim_state_dict(of_model, of_optimizer),
        }

    def whole_of(of_model):
        with FullyShardedDataParallel.state_dict_type(
            of_model, StateDictType.FULL_STATE_DICT, FullStateDictConfig()
        ):
            return {name: value.clone() for name, value in of_model.state_dict().items()}

    with cairn.open(path, mode="a") as store:
        state = state_of(model, optimizer)
        kinds = {type(value).__name__ for value in state["model"].values()}
        assert ("DTensor" if layout == "dtensor" else "ShardedTensor") in kinds
        store.save(1, state)
        other = wrapped(2)
        other_optimizer = torch.optim.Adam(other.parameters(), lr=0.1)
        train(other, other_optimizer, rank)
        FullyShardedDataParallel.set_state_dict_type(other, StateDictType.SHARDED_STATE_DICT)
        target = state_of(other, other_optimizer)
        store.load(target)
        other.load_state_dict(target["model"])
        assert_equal(whole_of(other), whole_of(model))
        return whole_of(model)


@pytest.mark.parametrize("layout", ["sharded_tensor", "dtensor"])
def test_fsdp1(path, layout):
    want = run_on_ranks(train_fsdp1, path, layout)[0]
    with cairn.open(path) as store:
        assert_equal(store.read("model")["model"], want)


def train_ddp(rank, path):
    model = nn.parallel.DistributedDataParallel(seeded(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, rank)
    with cairn.open(path, mode="a") as store:
        store.save(1, {"model": model, "optimizer": optimizer})
        keys = store.keys()
        assert "model.module.up.weight" in keys
        assert keys["model.module.head.weight"].alias_of == "model.module.embed.weight"
        other = nn.parallel.DistributedDataParallel(seeded(2))
        other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
        train(other, other_optimizer, rank, steps=1)
        store.load({"model": other, "optimizer": other_optimizer}, read_once=True)
        assert_equal(full_state(other), full_state(model))
        buffers = other_optimizer.state_dict()["state"][0]["momentum_buffer"]
        assert torch.equal(buffers, optimizer.state_dict()["state"][0]["momentum_buffer"])
        return full_state(model.module)


def test_ddp(path):
    want = run_on_ranks(train_ddp, path)[0]
    with cairn.open(path) as store:
        plain = seeded(3)
        store.load(plain, prefix="model.module")
        assert_equal(full_state(plain), want)


def parallel(mesh, seed):
    model = seeded(seed)
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def train_tp(rank, path):
    world = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallel(world["tp"], 1)  # and a replica of it on the other row
    both = parallel(world["tp"], 4)
    for part in (both.up, both.down, both):
        fully_shard(part, mesh=world["dp"])  # strided shards
    with cairn.open(path, mode="a") as store:
        store.save(1, {"model": model, "both": both})
        wants = full_state(model), full_state(both)
        for read_once in (False, True):
            flat = init_device_mesh("cpu", (4,))
            other = shard_fully(seeded(2), flat)
            again = parallel(flat, 3)
            store.load({"model": other}, keys="model", read_once=read_once)
            store.load(again, prefix="both", read_once=read_once)
            assert_equal(full_state(other), wants[0])
            assert_equal(full_state(again), wants[1])
        return wants


def test_tensor_parallelism_with_and_without_fsdp(path):
    wants = run_on_ranks(train_tp, path)[0]
    with cairn.open(path) as store:
        assert_equal(store.read("model", flat=True), {f"model.{k}": v for k, v in wants[0].items()})
        assert_equal(store.read("both", flat=True), {f"both.{k}": v for k, v in wants[1].items()})


def use_state_dict_api(rank, path):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = shard_fully(seeded(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optimizer, rank)
    with cairn.open(path, mode="a") as store:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        store.save(1, {"model": model_state, "optimizer": optimizer_state})
        other = shard_fully(seeded(2))
        other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.1)
        model_state, optimizer_state = get_state_dict(other, other_optimizer)
        target = {"model": model_state, "optimizer": optimizer_state}
        store.load(target)
        set_state_dict(
            other,
            other_optimizer,
            model_state_dict=target["model"],
            optim_state_dict=target["optimizer"],
        )
        assert_equal(full_state(other), full_state(model))
        before = copy.deepcopy(full_state(model))
        train(model, optimizer, rank)
        train(other, other_optimizer, rank)
        assert_equal(full_state(other), full_state(model))
        assert not torch.equal(before["up.weight"], full_state(model)["up.weight"])
    dist.barrier()


def test_get_state_dict_and_set_state_dict(path):
    run_on_ranks(use_state_dict_api, path)
