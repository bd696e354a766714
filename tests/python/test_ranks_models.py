"""A model and its optimizer under FSDP2, given as objects, and targets on the meta device.

`dcp/test_wrappers.py` saves and loads the state dicts of all wrappers.
"""

from __future__ import annotations

import torch
from ranks import run_on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

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


def seeded(seed: int) -> Net:
    torch.manual_seed(seed)
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
