"""What the cells save: flat states in host memory, which are the model, and payloads of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch

_SHAPES = {"tiny": (1,), "empty": (0, 5), "64 MiB": (16 << 20,)}
_ELSEWHERE = {  # kinds of payload that cannot have each dtype
    "numpy": {"bfloat16": "float16", "float8_e4m3fn": "float64"},
    "cuda": {"float8_e4m3fn": "float32"},
}


def dtype_of(payload: str, dtype: str) -> torch.dtype:
    return getattr(torch, _ELSEWHERE.get(payload, {}).get(dtype, dtype))


@functools.lru_cache(maxsize=8)
def host_state(payload: str, dtype_name: str, version: int) -> dict[str, Any]:
    """The flat state of a version, which nobody may change: about 1 % of the elements differ from
    the version before it."""
    if payload == "nothing":
        return {}
    dtype = dtype_of(payload, dtype_name)
    shape = _SHAPES.get(payload, (150, 700))
    if payload == "64 MiB":
        shape = (16, (4 << 20) // dtype.itemsize)
    is_small = payload in ("tiny", "empty")
    big = _tensor(shape, dtype, version, 1)
    return {
        "model.big": big,
        "model.norm": _tensor(shape if is_small else (7, 5), dtype, version, 2),
        "model.tied": big,
        "optimizer.moments.0": _tensor(shape if is_small else (300,), torch.float32, version, 3),
        "optimizer.count": _tensor(shape if payload == "empty" else (), torch.int64, version, 4),
        "optimizer.rate": 0.5**version,
        "step": version,
        "name": "run",
    }


def _tensor(shape: tuple[int, ...], dtype: torch.dtype, version: int, seed: int) -> torch.Tensor:
    values, count = np.random.default_rng(seed), int(np.prod(shape))
    if count < 1 << 20:
        flat = (values.standard_normal(count, dtype=np.float32) * 50).round(2)
    else:  # faster
        flat = values.integers(-100, 100, count, dtype=np.int8)
    for _ in range(version):
        changed = values.integers(0, max(flat.size, 1), -(-flat.size // 100))
        flat[changed] = -flat[changed] - 1
    tensor = torch.from_numpy(flat).reshape(shape)
    return tensor.abs().to(dtype) if dtype == torch.uint8 else tensor.to(dtype)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """The state whose names are the flat ones."""
    state: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        inside = state
        for key in path:
            inside = inside.setdefault(key, {})
        inside[last] = value
    return state


def flattened(state: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in state.items():
        name = above + key
        flat |= flattened(value, name + ".") if isinstance(value, dict) else {name: value}
    return flat


def in_kind(payload: str, flat: dict[str, Any], mesh: Any = None) -> dict[str, Any]:
    """The flat state with tensors of this kind. Tensors that are one object remain one."""
    made: dict[int, Any] = {}

    def convert(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = _convert(payload, value, mesh)
        return made[id(value)]

    return {name: convert(value) for name, value in flat.items()}


def _convert(payload: str, value: torch.Tensor, mesh: Any) -> Any:
    if payload == "numpy":
        return value.numpy().copy()
    if payload == "cuda":
        from device_memory import to_cuda

        return to_cuda(value)
    if mesh is not None:
        from dtensors import sharded
        from torch.distributed.tensor import Replicate, Shard

        dims = min(value.dim(), 2)
        placements = [Shard(dims - 1 - i) if i < dims else Replicate() for i in range(mesh.ndim)]
        return sharded(value, mesh, placements)
    return value.clone()


def differ(a: Any, b: Any) -> bool:
    """Whether two leaves of any kind differ in dtype, shape or a bit of what this rank has."""
    a, b = _on_host(a), _on_host(b)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return type(a) is not type(b) or a != b
    same = a.dtype == b.dtype and a.shape == b.shape
    return not same or not np.array_equal(_bytes(a), _bytes(b))


def _on_host(value: Any) -> Any:
    value = getattr(value, "_local_tensor", value)
    if not isinstance(value, torch.Tensor):
        return np.asarray(value) if isinstance(value, np.generic) else value
    if value.is_cuda:
        from device_memory import to_host

        value = to_host(value)
    try:
        return value.contiguous().numpy()
    except TypeError:  # numpy does not have the dtype; a structure of one field has its name
        bits = value.contiguous().view(getattr(torch, f"uint{8 * value.itemsize}"))
        return bits.numpy().view([(str(value.dtype), bits.numpy().dtype)])


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def clear(state: dict[str, Any]) -> None:
    """Overwrites all tensors of a flat state with zeros."""
    for value in state.values():
        value = getattr(value, "_local_tensor", value)
        if isinstance(value, torch.Tensor) and value.is_cuda:
            from device_memory import fill

            fill(value, torch.zeros((), dtype=value.dtype))
        elif isinstance(value, (torch.Tensor, np.ndarray)):
            value[...] = 0


def mean(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What `merge` makes of two states, as docs/merging.md describes it."""
    made: dict[int, Any] = {}
    for name, value in second.items():
        if isinstance(value, torch.Tensor):
            made.setdefault(id(value), _mean(first[name], value))
    return {name: made.get(id(value), value) for name, value in second.items()}


def _mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.is_complex():
        return torch.view_as_complex(_mean(torch.view_as_real(a), torch.view_as_real(b)))
    if not a.is_floating_point():
        return b
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.itemsize]
    mean = (a.to(wide) * 0.5 + b.to(wide) * 0.5).to(a.dtype)
    return torch.where(a.view(bits) == b.view(bits), b, mean)
