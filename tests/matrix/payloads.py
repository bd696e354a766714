"""What the cells save: flat states in host memory, which are the model, and payloads of them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from cairn_testing import bits, payload as bytes_of

Flat = dict[str, Any]
_SHAPES = {"tiny": (1,), "empty": (0, 5)}
_ELSEWHERE = {  # kinds of payload that cannot have each dtype
    "numpy": {"bfloat16": "float16", "float8_e4m3fn": "float64"},
    "cuda": {"float8_e4m3fn": "float32"},
}


@functools.lru_cache(maxsize=8)
def host_state(payload: str, dtype_name: str, version: int) -> Flat:
    """The flat state of a version, which nobody may change: about 1 % of the elements differ from
    the version before it."""
    if payload == "nothing":
        return {}
    dtype = getattr(torch, _ELSEWHERE.get(payload, {}).get(dtype_name, dtype_name))
    small = _SHAPES.get(payload)
    shape = (6, (4 << 20) // dtype.itemsize) if payload == "24 MiB" else small or (150, 700)
    big = _tensor(shape, dtype, version, 1)
    return {
        "model.big": big,
        "model.norm": _tensor(small or (7, 5), dtype, version, 2),
        "model.tied": big,
        "optimizer.moments.0": _tensor(small or (300,), torch.float32, version, 3),
        "optimizer.count": _tensor((0, 5) if payload == "empty" else (), torch.int64, version, 4),
        "optimizer.rate": 0.5**version,
        "step": version,
        "name": "run",
        "log": f"step {version}; " * 1_000,  # its bytes are chunks
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


def nested(flat: Flat) -> dict[str, Any]:
    """The state whose names are the flat ones."""
    state: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        functools.reduce(lambda inside, key: inside.setdefault(key, {}), path, state)[last] = value
    return state


def flattened(state: dict[str, Any], above: str = "") -> Flat:
    flat = {}
    for key, value in state.items():
        name = above + key
        flat |= flattened(value, name + ".") if isinstance(value, dict) else {name: value}
    return flat


def in_kind(payload: str, flat: Flat, mesh: Any = None) -> Flat:
    """The flat state with tensors of this kind. Tensors that are one object remain one."""
    tensors = {id(value): value for value in flat.values() if isinstance(value, torch.Tensor)}
    made = {key: _convert(payload, value, mesh) for key, value in tensors.items()}
    return {name: made.get(id(value), value) for name, value in flat.items()}


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
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is not type(b) or a != b
    return a.dtype != b.dtype or a.shape != b.shape or bytes_of(a) != bytes_of(b)


def _on_host(value: Any) -> Any:
    value = getattr(value, "_local_tensor", value)
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.from_numpy(np.asarray(value))
    if isinstance(value, torch.Tensor) and value.is_cuda:
        from device_memory import to_host

        return to_host(value)
    return value


def clear(flat: Flat) -> None:
    """Overwrites all tensors with zeros."""
    for value in flat.values():
        value = getattr(value, "_local_tensor", value)
        if isinstance(value, torch.Tensor) and value.is_cuda:
            from device_memory import fill

            fill(value, torch.zeros((), dtype=value.dtype))
        elif isinstance(value, (torch.Tensor, np.ndarray)):
            value[...] = 0


def mean(first: Flat, second: Flat) -> Flat:
    """What `merge` makes of two states, as docs/merging.md describes it."""
    made = {
        id(value): _mean(first[name], value)
        for name, value in second.items()
        if isinstance(value, torch.Tensor)
    }
    return {name: made.get(id(value), value) for name, value in second.items()}


def _mean(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.is_complex():
        return torch.view_as_complex(_mean(torch.view_as_real(a), torch.view_as_real(b)))
    if not a.is_floating_point():
        return b
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    mean = (a.to(wide) * 0.5 + b.to(wide) * 0.5).to(a.dtype)
    return torch.where(bits(a) == bits(b), b, mean)
