"""Tensors in place of those that an object lacks, for the contents of a step: meta tensors, which
the load replaces, or memory on the device of a parameter."""

from __future__ import annotations

from typing import Any

from cairn._base import dtypes
from cairn._base.tree import NUMPY_ARRAY, NUMPY_SCALAR
from cairn._ranks.sharded import is_dtensor
from cairn._tensors.contents import TensorLeaf
from cairn._tensors.targets import new_array


class NewTensors:
    """The tensors of one load. Those that are tied in the step are one tensor.

    Attributes:
        has_memory: whether one of them is not a meta tensor: its memory has no contents yet.
    """

    def __init__(self) -> None:
        self.has_memory = False
        self._made: dict[tuple, Any] = {}
        """By place in the step."""

    def make(self, leaf: TensorLeaf, like: Any = None) -> Any:
        """`like`: the parameter to which it belongs, which it is placed as."""
        if leaf.kind == NUMPY_SCALAR:
            return None
        key = leaf.kind, leaf.info.place, id(like)
        if key not in self._made:
            self._made[key] = self._new(leaf, like)
        return self._made[key]

    def _new(self, leaf: TensorLeaf, like: Any) -> Any:
        shape = leaf.info.shape
        if leaf.kind == NUMPY_ARRAY:
            self.has_memory = True
            return new_array(leaf.info.dtype, shape)
        torch = dtypes.require_torch()
        dtype = dtypes.torch_dtype(leaf.info.dtype)
        if like is None or not shape:  # a count of steps is in host memory
            return torch.empty(shape, dtype=dtype, device="meta")
        device = "meta" if like.device.type == "cpu" or is_dtensor(like) else like.device
        self.has_memory |= device != "meta"
        if tuple(like.shape) == shape:
            return torch.empty_like(like.detach(), dtype=dtype, device=device)
        return torch.empty(shape, dtype=dtype, device=device)
