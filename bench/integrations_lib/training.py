"""The model that all libraries train, and the digest by which a resumed state is compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

FROZEN = 0.9
"""The part of the layers that the fine-tuning does not change."""


class Network(torch.nn.Module):
    """Square layers of 4 MiB each, or smaller ones if there would be less than ten."""

    def __init__(self, parameters: float, frozen: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.width = 1024 if parameters >= 8e6 else 256 if parameters >= 1e6 else 64
        count = max(10, round(parameters / self.width**2))
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(self.width, self.width) for _ in range(count)
        )
        if frozen:
            for layer in self.layers[: round(FROZEN * count)]:
                layer.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x) / 4
        return x

    def loss(self) -> torch.Tensor:
        """The loss of a random batch."""
        dtype = next(self.parameters()).dtype
        return (self(torch.randn(2, self.width, dtype=dtype)).float() - 1).square().mean()

    def trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.requires_grad]


def digest(tensors: Iterable[Any]) -> str:
    """A digest of the bytes of tensors, in their order; of a distributed tensor, its local part."""
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        contents = local.detach().contiguous().reshape(-1).view(torch.uint8)
        found.update(contents.numpy())
    return found.hexdigest()


def training_digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A digest of the parameters and of what the optimizer has for them."""
    trained = (p for group in optimizer.param_groups for p in group["params"])
    states = [optimizer.state.get(p, {}) for p in trained]
    moments = [value for state in states for _, value in sorted(state.items())]
    return digest([*model.parameters(), *(one for one in moments if torch.is_tensor(one))])
