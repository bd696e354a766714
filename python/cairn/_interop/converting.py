"""Conversion of a state in memory by rules, for an import.

Tensors that are only renamed remain views of their memory. All others are computed into an unnamed
temporary file that stays mapped, so that its pages need not remain in memory.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import torch

from cairn._base import dtypes
from cairn._load.conversions import ConversionOptions
from cairn._load.converted_keys import Key, convert_keys
from cairn._load.converted_load import fill_from_memory, raw_array
from cairn._load.renamed_state import name_of, paths_of, renamed_state
from cairn._tensors.boxed import BoxedTensor
from cairn.errors import Invalid, Unavailable

_ALIGN_BYTES = 4096


def convert(state: Any, options: ConversionOptions) -> Any:
    """The state after the rules and casts. Raises Invalid, also for a tensor that is not in one
    part; Unavailable if the temporary file cannot be written."""
    leaves: list[Any] = []
    tree = _numbered(state, leaves)
    sources = [_source(leaves[i], name_of(path), i) for path, i in paths_of(tree) if i is not None]
    keys = convert_keys(sources, options.rules, options.dtype, {})
    computed = [key for key in keys if not _is_view(key, sources)]
    arrays = {key.source: _array(leaves[key.source]) for key in sources if key.dtype is not None}
    scratch = _Scratch(sum(_slot_bytes(key) for key in computed))
    tensors = {}
    for key in computed:
        tensors[key.fqn] = scratch.take(key)
        fill_from_memory(key, sources, arrays, raw_array(tensors[key.fqn]))

    def value_of(key: Key) -> Any:
        return tensors.get(key.fqn, leaves[key.source])

    return renamed_state(tree, [key.fqn for key in sources], keys, value_of)


def _numbered(value: Any, leaves: list[Any]) -> Any:
    """The containers of a state with the positions of the leaves in `leaves`, which it fills."""
    if isinstance(value, dict):
        return type(value)({key: _numbered(child, leaves) for key, child in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([_numbered(child, leaves) for child in value])
    leaves.append(value)
    return len(leaves) - 1


def _source(leaf: Any, fqn: str, place: int) -> Key:
    if isinstance(leaf, torch.Tensor):
        return Key(fqn, place, dtypes.code_of_torch(leaf.dtype), tuple(leaf.shape))
    if not isinstance(leaf, BoxedTensor):
        return Key(fqn, place)
    if not leaf.is_complete:
        raise Invalid(f"sharded tensors cannot be converted on a save (key {fqn})", key=fqn)
    return Key(fqn, place, leaf.dtype, leaf.shape)


def _array(leaf: Any) -> np.ndarray:
    return raw_array(leaf) if isinstance(leaf, torch.Tensor) else leaf.boxes[0].array


def _is_view(key: Key, sources: list[Key]) -> bool:
    return key.dtype is None or (key.is_whole and key.dtype == sources[key.source].dtype)


def _slot_bytes(key: Key) -> int:
    """Every tensor begins on a page."""
    size = math.prod(key.shape) * dtypes.item_bytes(key.dtype or 0)
    return -(-size // _ALIGN_BYTES) * _ALIGN_BYTES


class _Scratch:
    """Memory of an unnamed temporary file."""

    def __init__(self, size: int) -> None:
        self._next = 0
        try:
            with tempfile.TemporaryFile() as file:
                # Reserves the space: a full disk must not end the process when a page is written.
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
                self._map = mmap.mmap(file.fileno(), max(size, 1))
        except OSError as error:
            raise Unavailable(f"allocating a temporary file: {error.strerror}") from None

    def take(self, key: Key) -> torch.Tensor:
        """The next part, as a tensor of the key's dtype and shape."""
        dtype, count = dtypes.torch_dtype(key.dtype or 0), math.prod(key.shape)
        if count == 0:
            return torch.empty(key.shape, dtype=dtype)
        size = _slot_bytes(key)
        memory = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=self._next)
        self._next += size
        return memory[: count * dtype.itemsize].view(dtype).view(key.shape)
