"""Copies of state dicts: to host memory, and into other state dicts of the same structure.

No function in this module communicates with other ranks.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

import torch

from cairn import _cairn
from cairn._base import devices, dtypes
from cairn._ranks.ranks import default_group
from cairn._ranks.sharded import dtensor_like, is_dtensor, is_sharded_tensor, local_of
from cairn._tensors.sources import is_torch_tensor
from cairn.errors import Invalid, refuse
from cairn.state_dict._walk import pairs, rebuild


def offload_state_dict_to_cpu(
    state_dict: dict[str, Any], *, ranks_only: tuple[int, ...] = (), type_check: bool = True
) -> dict[str, Any]:
    """Returns the state with every tensor in host memory. Sharded tensors remain sharded.

    Tensors that are already in host memory are the same objects, not copies. For copies, use
    :func:`create_cpu_state_dict` and :func:`copy_state_dict`.

    Args:
        ranks_only: ranks that get the state; the others get an empty dict. Empty: all ranks.
        type_check: ``False`` deep-copies values that are neither tensors nor plain values.

    Counterpart of torch's ``_offload_state_dict_to_cpu``, with the same results.

    Raises:
        Invalid: a value of another type, with ``type_check`` (torch: ValueError).
    """
    result = rebuild(state_dict, lambda value, fqn: value.to("cpu"), type_check)
    return result if _is_named(ranks_only) else {}


def _is_named(ranks_only: tuple[int, ...]) -> bool:
    if not ranks_only:
        return True
    rank = 0 if default_group() is None else torch.distributed.get_rank()
    return rank in ranks_only


@torch.no_grad()
def create_cpu_state_dict(
    state_dict: dict[str, Any], pin_memory: bool = False, share_memory: bool = False
) -> dict[str, Any]:
    """Returns a state of the same structure, with new uninitialized tensors in host memory.

    Sharded tensors remain sharded, and each rank has memory for its part. Plain values are the same
    objects; other values are deep-copied. Tensors that share memory get separate memory.

    Args:
        pin_memory: uses page-locked memory, which devices access asynchronously. Requires a device.
            Each tensor occupies a whole number of pages.
        share_memory: uses memory that other processes can map, as ``Tensor.share_memory_()``.

    Counterpart of torch's ``_create_cpu_state_dict``. Unlike in torch, scalar DTensors also get
    separate memory, and scalars are uninitialized like all other tensors (torch: 0).
    """

    def new(like: torch.Tensor) -> torch.Tensor:
        made = torch.empty(like.shape, dtype=like.dtype, device="cpu")
        if share_memory:
            made = made.share_memory_()
        if pin_memory and made.numel() > 0:
            made = _register(made) if share_memory else _pinned(made)
        return made

    def tensor(value: Any, fqn: str) -> Any:
        if is_dtensor(value):
            return dtensor_like(value, new(local_of(value)))
        if is_sharded_tensor(value):
            made = copy.deepcopy(value) if value.device.type == "cpu" else value.to(device="cpu")
            for shard in made.local_shards():
                shard.tensor = new(shard.tensor)
            return made
        return new(value)

    return rebuild(state_dict, tensor, type_check=False)


def _pinned(like: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape in page-locked memory, allocated by Cairn if it has CUDA
    support."""
    code = dtypes.code_of_torch(like.dtype)
    made = None
    if code is not None and devices.reaches_cuda():
        made = _cairn.new_pinned_tensor(code, tuple(like.shape))
    return like.pin_memory() if made is None else made


def _register(tensor: torch.Tensor) -> torch.Tensor:
    """Page-locks existing memory for the lifetime of the tensor."""
    runtime = torch.cuda.cudart()
    address = tensor.data_ptr()
    failed = int(runtime.cudaHostRegister(address, tensor.numel() * tensor.element_size(), 1))
    if failed:
        raise Invalid(f"shared memory cannot be page-locked: CUDA error {failed}")
    weakref.finalize(tensor, runtime.cudaHostUnregister, address)
    return tensor


@torch.no_grad()
def copy_state_dict(
    state_dict: dict[str, Any],
    copy_state_dict: dict[str, Any],
    non_blocking: bool = False,
    type_check: bool = True,
) -> dict[str, Any]:
    """Copies every tensor into the tensor at the same position of another state.

    Dtypes and devices may differ. With ``non_blocking``, copies between device and pinned memory
    may still be running when it returns: synchronize before use.

    Returns:
        A new state: the tensors of ``copy_state_dict``, the plain values of ``state_dict``.

    Counterpart of torch's ``_copy_state_dict``. Unlike in torch, the structures are compared before
    anything is written, and shapes must be equal.

    Raises:
        Invalid: the structures, or the shapes or layouts of two tensors, differ (torch:
            CompanionMismatch, or the error of ``copy_``); a value of another type, with
            ``type_check`` (torch: ValueError).
    """
    matched = pairs(state_dict, copy_state_dict)
    for fqn, source, target in matched:
        if is_torch_tensor(source) and (difference := _difference(source, target)):
            raise refuse(fqn, f"not the same on both sides ({difference})", "make them equal")
    targets = iter([target for _, source, target in matched if is_torch_tensor(source)])
    result = rebuild(state_dict, lambda *_: next(targets), type_check)
    for _, source, target in matched:
        if is_torch_tensor(source):
            for part, into in zip(_memory_of(source), _memory_of(target)):
                into.copy_(part, non_blocking=non_blocking)
    return result


def _memory_of(value: Any) -> list[torch.Tensor]:
    """The plain tensors on this rank that a tensor consists of."""
    if is_dtensor(value):
        return [local_of(value)]
    if is_sharded_tensor(value):
        return [shard.tensor for shard in value.local_shards()]
    return [value]


def _difference(a: torch.Tensor, b: Any) -> str | None:
    """Why a tensor cannot be copied into another leaf, ignoring dtypes; None if it can."""
    if not is_torch_tensor(b) or is_dtensor(a) != is_dtensor(b):
        return f"{type(a).__name__}, {type(b).__name__}"
    if is_sharded_tensor(a) != is_sharded_tensor(b):
        return f"{type(a).__name__}, {type(b).__name__}"
    if a.size() != b.size() or _shapes_of(a) != _shapes_of(b):
        return f"shapes {list(a.size())}, {list(b.size())}"
    if is_dtensor(a) and (a.device_mesh != b.device_mesh or a.placements != b.placements):
        return f"placements {a.placements}, {b.placements}"
    return None


def _shapes_of(value: Any) -> list[tuple[int, ...]]:
    return [tuple(part.shape) for part in _memory_of(value)]


def check_state_dict_similarity(
    state_dict: dict[str, Any], compared_state_dict: dict[str, Any]
) -> bool:
    """Whether two states have the same structure, and tensors of the same shapes and dtypes.

    The order of dicts is irrelevant, and a list is equivalent to a tuple. Sharded tensors must be
    sharded in the same way. Plain values are not compared.

    Counterpart of torch's ``_check_state_dict_similarity``. Unlike in torch, nothing is copied into
    ``compared_state_dict``, sharded tensors are compared, and a leaf in place of a container, or a
    value in place of a tensor, is a difference and not an exception.
    """
    try:
        matched = pairs(state_dict, compared_state_dict)
    except Invalid:
        return False
    return all(_are_similar(a, b) for _, a, b in matched)


def _are_similar(a: Any, b: Any) -> bool:
    if not is_torch_tensor(a):
        return not is_torch_tensor(b)
    return _difference(a, b) is None and a.dtype == b.dtype
