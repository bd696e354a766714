"""Megatron-Core's distributed checkpointing with Cairn: a tensor-parallel network on CPUs.

    torchrun --nproc-per-node 2 examples/megatron_checkpoints.py runs/megatron --steps 12

Each rank has a part of the matrices and of the state of their optimizer. Kill it and start it
again, also with another number of ranks: it continues from the last checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region

from cairn.trainers.megatron import CairnSaveStrategy

WIDTH, HIDDEN = 16, 96
# The dimension in which each parameter is divided; None for a parameter that all ranks have.
DIVIDED = {"up": 0, "down": 1, "bias": None}


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        whole = {
            "up": torch.randn(HIDDEN, WIDTH, generator=generator) / 4,
            "down": torch.randn(WIDTH, HIDDEN, generator=generator) / 10,
            "bias": torch.zeros(WIDTH),
        }
        rank, size = dist.get_rank(), dist.get_world_size()
        for name, value in whole.items():
            dim = DIVIDED[name]
            part = value if dim is None else value.chunk(size, dim)[rank]
            self.register_parameter(name, torch.nn.Parameter(part.clone()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(inputs @ self.up.T)
        return reduce_from_tensor_model_parallel_region(hidden @ self.down.T) + self.bias


def sharded(key: str, name: str, data: torch.Tensor) -> ShardedTensor:
    rank, size, dim = dist.get_rank(), dist.get_world_size(), DIVIDED[name]
    if dim is None or data.ndim == 0:
        return ShardedTensor.from_rank_offsets(key, data, replica_id=rank)
    return ShardedTensor.from_rank_offsets(key, data, (dim, rank, size))


def sharded_state(model: Network, optimizer: torch.optim.Adam, step: int) -> dict[str, Any]:
    """The state with Megatron's descriptions of which rank has what."""
    if not optimizer.state:  # a load needs memory to fill
        for parameter in model.parameters():
            zeros = torch.zeros_like(parameter.data)
            optimizer.state[parameter] = {
                "step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()
            }
    state: dict[str, Any] = {"step": step, "model": {}, "optimizer": {}}
    for name, parameter in model.named_parameters():
        state["model"][name] = sharded(f"model.{name}", name, parameter.data)
        state["optimizer"][name] = {
            field: sharded(f"optimizer.{name}.{field}", name, value)
            for field, value in optimizer.state[parameter].items()
        }
    random_state = {"torch": torch.get_rng_state()}
    state["rng"] = ShardedObject("rng", random_state, (1,), (0,), replica_id=dist.get_rank())
    return state


def resume(folder: Path, model: Network, optimizer: torch.optim.Adam) -> int:
    """Loads the newest complete checkpoint. Returns its step, or 0."""
    found = [path for path in folder.glob("iter_*") if (path / "metadata.json").exists()]
    if not found:
        return 0
    state = sharded_state(model, optimizer, 0)
    loaded = dist_checkpointing.load(state, str(max(found)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(loaded["model"][name])
            optimizer.state[parameter] = loaded["optimizer"][name]
    torch.set_rng_state(loaded["rng"]["torch"])
    return loaded["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the checkpoints")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--interval", type=int, default=2)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    torch.manual_seed(1)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    step = resume(arguments.folder, model, optimizer)
    while step < arguments.steps:
        step += 1
        inputs = torch.randn(8, WIDTH)  # from the random state, which the checkpoint contains
        loss = (model(inputs) - inputs.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.9f}", flush=True)
        if step % arguments.interval == 0:
            folder = arguments.folder / f"iter_{step:07d}"
            folder.mkdir(parents=True, exist_ok=True)
            state = sharded_state(model, optimizer, step)
            dist_checkpointing.save(state, str(folder), CairnSaveStrategy())
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, [p.detach().numpy().tobytes() for p in model.parameters()])
    if dist.get_rank() == 0:
        print(f"weights {hashlib.sha256(repr(parts).encode()).hexdigest()}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
