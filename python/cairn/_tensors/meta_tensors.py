"""Memory for meta tensors: new tensors with the same shape and type on a device."""

from __future__ import annotations

from typing import Any

from cairn._ranks.ranks import Ranks
from cairn._ranks.sharded import dtensor_like, is_dtensor, is_sharded_tensor
from cairn._tensors.sources import dtype_code
from cairn._tensors.targets import new_tensor
from cairn.errors import refuse


class MetaTensorFactory:
    """Creates tensors to replace meta tensors. Each load has its own factory, which returns one
    tensor for all meta tensors that are tied."""

    def __init__(self, device: Any, ranks: Ranks) -> None:
        self._device = device
        self._ranks = ranks
        self._made: dict[tuple, tuple[Any, Any]] = {}
        """(meta tensor, new tensor), by the memory that the meta tensor represents."""

    def make(self, meta: Any, fqn: str) -> Any:
        """An uninitialized tensor like ``meta``; a DTensor if ``meta`` is one. Raises Invalid."""
        import torch

        if is_sharded_tensor(meta):
            raise refuse(
                fqn, "a ShardedTensor on the meta device", "use DTensor, or give it memory first"
            )
        place = _place(meta._local_tensor if is_dtensor(meta) else meta)
        place += (isinstance(meta, torch.nn.Parameter), meta.requires_grad)
        if place not in self._made:
            made = self._dtensor(meta, fqn) if is_dtensor(meta) else self._plain(meta, fqn)
            if isinstance(meta, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=meta.requires_grad)
            elif meta.requires_grad:
                made.requires_grad_()
            # The meta tensor is kept alive, so that the id of its storage remains unique.
            self._made[place] = meta, made
        return self._made[place][1]

    def _plain(self, meta: Any, fqn: str) -> Any:
        return _empty(meta.dtype, tuple(meta.shape), meta.stride(), self._default_device(), fqn)

    def _dtensor(self, meta: Any, fqn: str) -> Any:
        local = meta._local_tensor
        device = self._mesh_device(meta.device_mesh)
        made = _empty(local.dtype, tuple(local.shape), local.stride(), device, fqn)
        return dtensor_like(meta, made)

    def _default_device(self) -> Any:
        import torch

        if self._device is not None:
            return torch.device(self._device)
        if self._ranks.device is not None:
            return self._ranks.device
        default = torch.get_default_device()
        return torch.device("cpu") if default.type == "meta" else default

    def _mesh_device(self, mesh: Any) -> Any:
        import torch

        if self._device is not None:
            return torch.device(self._device)
        if mesh.device_type == "cpu":
            return torch.device("cpu")
        return torch.device(mesh.device_type, getattr(torch, mesh.device_type).current_device())


def _place(meta: Any) -> tuple:
    storage = meta.untyped_storage()
    return storage._cdata, meta.storage_offset(), meta.dtype, tuple(meta.shape), meta.stride()


def _empty(
    dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], device: Any, fqn: str
) -> Any:
    import torch

    like = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    if device.type == "cpu" and like.is_contiguous():
        return new_tensor(dtype_code(dtype, fqn), shape)
    # Like torch, this keeps the strides if the memory has no holes.
    return torch.empty_like(like, device=device)
