"""Models and optimizers under FSDP1, FSDP2, DDP and tensor parallelism, on four ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from cairn_testing import assert_same
from ranks import run_on_ranks, with_ranks
from storages import Native, Storage
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """Sizes that are not divisible by four, nor by two after a first division."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(5, 14)
        self.down = nn.Linear(14, 7)
        # dcp's planner does not find the keys of FSDP1 of which a rank has no rows at all.
        self.head = nn.Linear(7, 11, bias=False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.down(torch.tanh(self.up(x)))))


def _plans() -> dict:
    return {"up": ColwiseParallel(), "down": RowwiseParallel()}


def _fsdp2(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (4,))
    for layer in (net.up, net.down, net):
        fully_shard(layer, mesh=mesh)
    return net


def _tensor_parallel(net: Net) -> nn.Module:
    """Two pairs of ranks that hold the same tensors."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return parallelize_module(net, mesh["tp"], _plans())


def _two_dims(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(net, mesh["tp"], _plans())
    return fully_shard(net, mesh=mesh["dp"])


def _three_dims(net: Net) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("replicate", "shard", "tp"))
    parallelize_module(net, mesh["tp"], _plans())
    return fully_shard(net, mesh=mesh["replicate", "shard"])


WRAPPERS: dict[str, Callable[[Net], nn.Module]] = {
    "ddp": DistributedDataParallel,
    "fsdp1": lambda net: FullyShardedDataParallel(net, device_id=torch.device("cpu")),
    "fsdp2": _fsdp2,
    "tensor parallel": _tensor_parallel,
    "two dims": _two_dims,
    "three dims": _three_dims,
}


def made(wrapper: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model after one training step, equal on all ranks before it is wrapped."""
    torch.manual_seed(seed)
    model = WRAPPERS[wrapper](Net())
    optim = torch.optim.AdamW(model.parameters(), lr=seed / 100, betas=(0.8, 0.9))
    step(model, optim)
    return model, optim


def step(model: nn.Module, optim: torch.optim.Optimizer) -> None:
    optim.zero_grad()
    loss = model(torch.linspace(-1, 1, 10).view(2, 5)).square().mean()
    loss.backward()
    optim.step()


def whole_state(model: nn.Module, optim: torch.optim.Optimizer) -> dict:
    """The full state, on every rank."""
    model_state, optim_state = get_state_dict(
        model, optim, options=StateDictOptions(full_state_dict=True)
    )
    return {"model": model_state, "optim": optim_state}


def local_state(model: nn.Module, optim: torch.optim.Optimizer) -> dict:
    model_state, optim_state = get_state_dict(model, optim)
    return {"model": model_state, "optim": optim_state, "step": 5}


def save_each_and_load_into_all(rank: int, storage: Storage | Native, path) -> int:
    whole = {}
    for wrapper in WRAPPERS:
        model, optim = made(wrapper, seed=1)
        whole[wrapper] = whole_state(model, optim)
        storage.save(local_state(model, optim), path / wrapper)
    count = 0
    for target in WRAPPERS:
        model, optim = made(target, seed=2)
        for wrapper in WRAPPERS:
            state = {**local_state(model, optim), "step": 0}
            if isinstance(storage, Native):  # refuses the step that FSDP1 gives several parameters
                for values in state["optim"]["state"].values():
                    values["step"] = values["step"].clone()
            storage.load(state, path / wrapper)
            assert state["step"] == 5
            set_state_dict(
                model, optim, model_state_dict=state["model"], optim_state_dict=state["optim"]
            )
            got = whole_state(model, optim)
            assert_same(sorted_state(got), sorted_state(whole[wrapper]), f"{wrapper} to {target}")
            step(model, optim)  # other contents, for the next
            count += 1
    return count


def sorted_state(state: object) -> object:
    """Dicts with sorted keys, because wrappers order them differently."""
    if isinstance(state, dict):
        return {key: sorted_state(state[key]) for key in sorted(state)}
    return [sorted_state(value) for value in state] if isinstance(state, list) else state


def test_every_wrapper_loads_what_every_other_saved(any_storage, path):
    counts = run_on_ranks(save_each_and_load_into_all, any_storage, path)
    assert counts == [len(WRAPPERS) ** 2] * 4


def load_onto_meta(rank: int, storage: Storage | Native, path) -> int:
    model, optim = made("two dims", seed=1)
    whole = whole_state(model, optim)["model"]
    storage.save({"model": get_model_state_dict(model)}, path)
    count = 0
    for wrapper in ("fsdp2", "tensor parallel", "two dims"):
        with torch.device("meta"):
            empty = WRAPPERS[wrapper](Net())
        state = {"model": empty.state_dict()}
        assert all(value.device.type == "meta" for value in state["model"].values())
        storage.load(state, path)
        for fqn, value in state["model"].items():
            assert value.device.type == "cpu", fqn
            assert value.size() == whole[fqn].size()
            count += isinstance(value, DTensor)
        empty.load_state_dict(state["model"], assign=True)
        got = get_model_state_dict(empty, options=StateDictOptions(full_state_dict=True))
        assert_same(dict(got), dict(whole), wrapper)
    return count


def test_meta_tensors_of_a_target_are_made(any_storage, path):
    counts = run_on_ranks(load_onto_meta, any_storage, path)
    assert min(counts) > 5


@with_ranks()
def test_a_part_of_the_ranks_saves_and_loads(rank: int, storage: Storage, path) -> None:
    """Each half of the ranks has a separate checkpoint."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group, half = halves[rank // 2], f"half-{rank // 2}"
    state = {"same": torch.full((3,), float(rank // 2)), "half": half}
    storage.save(state, path / half, process_group=group)
    dist.barrier()
    target = {"same": torch.zeros(3), "half": ""}
    storage.load(target, path / half, process_group=group)
    assert_same(target, state)
