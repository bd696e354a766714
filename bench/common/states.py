"""The states that every library saves and loads: flat dicts from name to tensor, from a seed.

Tensors are allocated by `torch.empty`, so that they have torch's alignment. They are filled by
numpy, because torch's operators would start threads, which a process that forks must not have.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

SEED = 20261121
PIECE_BYTES = 8 << 20

Tensors = dict[str, torch.Tensor]
Boxes = dict[str, list[tuple[int, int]]]
"""Begin and end in each dimension of a tensor."""


def byte_view(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor."""
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    return np.frombuffer(memory, np.uint8)


def total_bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def fill(tensors: Tensors, seed: int = SEED) -> Tensors:
    """Fills all of them with random bytes."""
    random = np.random.Generator(np.random.SFC64(seed))
    for tensor in tensors.values():
        view = byte_view(tensor)
        for begin in range(0, len(view), PIECE_BYTES):
            piece = view[begin : begin + PIECE_BYTES]
            piece[:] = np.frombuffer(random.bytes(len(piece)), np.uint8)
    return tensors


def empty_like(tensors: Tensors) -> Tensors:
    return {key: torch.empty_like(tensor) for key, tensor in tensors.items()}


def empty_boxes(like: Tensors, boxes: Boxes) -> Tensors:
    return {
        key: torch.empty([end - begin for begin, end in box], dtype=like[key].dtype)
        for key, box in boxes.items()
    }


def zeros_like(tensors: Tensors) -> Tensors:
    """New tensors whose pages have been touched."""
    targets = empty_like(tensors)
    for target in targets.values():
        byte_view(target)[:] = 0
    return targets


def index_of(box: list[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(begin, end) for begin, end in box)


def cut(tensors: Tensors, boxes: Boxes) -> Tensors:
    """Copies these boxes into new tensors."""
    return {key: tensors[key][index_of(box)].clone() for key, box in boxes.items()}


@dataclass
class State:
    """One state in memory, and the parts of it that workloads use."""

    name: str
    title: str
    tensors: Tensors
    nbytes: int = -1
    """Bytes of the tensors. For `metadata`: the number of chunks."""

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            self.nbytes = total_bytes(self.tensors)

    def every(self, nth: int) -> list[str]:
        """One key in `nth`, spread evenly; none if there is one tensor."""
        return list(self.tensors)[nth // 2 :: nth] if len(self.tensors) > 1 else []

    def bytes_of(self, keys: list[str]) -> int:
        return total_bytes({key: self.tensors[key] for key in keys})

    def boxes(self, dim: int) -> Boxes:
        """The middle eighth of `dim` of every matrix."""
        found = {}
        for key, tensor in self.tensors.items():
            if tensor.dim() == 2 and tensor.shape[dim] >= 8:
                begin = tensor.shape[dim] * 7 // 16
                box = [(0, size) for size in tensor.shape]
                box[dim] = (begin, begin + tensor.shape[dim] // 8)
                found[key] = box
        return found

    def change(self, keys: list[str]) -> None:
        """Inverts every byte of these tensors, in a forked process only for this process."""
        for key in keys:
            view = byte_view(self.tensors[key])
            np.invert(view, out=view)


def _round(value: float, multiple: int) -> int:
    return max(multiple, round(value / multiple) * multiple)


def transformer_shapes(scale: float) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """A GPT of 438 million weights in bf16, AdamW's moments in fp32: 928 tensors."""
    width = _round(1280 * math.sqrt(scale), 64)
    vocabulary = _round(50304 * math.sqrt(scale), 64)
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (vocabulary, width),
        "wpe.weight": (1024, width),
    }
    for layer in range(19):
        for name, *shape in (
            ("norm1", width),
            ("attention.qkv", 3 * width, width),
            ("attention.out", width, width),
            ("norm2", width),
            ("mlp.up", 4 * width, width),
            ("mlp.down", width, 4 * width),
        ):
            shapes[f"layers.{layer}.{name}.weight"] = tuple(shape)
            shapes[f"layers.{layer}.{name}.bias"] = (shape[0],)
    shapes |= {"norm.weight": (width,), "norm.bias": (width,)}
    tensors = {f"model.{name}": (shape, torch.bfloat16) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        tensors[f"optimizer.{name}.exp_avg"] = (shape, torch.float32)
        tensors[f"optimizer.{name}.exp_avg_sq"] = (shape, torch.float32)
        tensors[f"optimizer.{name}.step"] = ((), torch.float32)
    return tensors


def _transformer(scale: float) -> State:
    shapes = transformer_shapes(scale)
    tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
    return State("transformer", "A transformer in bf16 with fp32 AdamW", fill(tensors))


def _small(scale: float) -> State:
    """1 MiB at every scale."""
    tensors = {f"layers.{i}.weight": torch.empty((64, 256)) for i in range(16)}
    return State("small", "A small state", fill(tensors))


def _experts_shape(scale: float) -> tuple[int, int, int]:
    """Tensor count, rows, columns. The tensors shrink first; below 1/20, there are fewer too."""
    count = 20_000 if scale >= 0.05 else max(200, round(20_000 * scale * 20))
    return count, 128, _round(416 * scale, 8)


def _experts(scale: float) -> State:
    count, rows, columns = _experts_shape(scale)
    tensors = {
        f"experts.{i:05}.weight": torch.empty((rows, columns), dtype=torch.bfloat16)
        for i in range(count)
    }
    return State("experts", f"{count:,} small tensors", fill(tensors))


def _embedding(scale: float) -> State:
    """One tensor with exactly as many bytes as the experts."""
    count, rows, columns = _experts_shape(scale)
    shape = (count * 8, rows * columns // 8)
    tensors = {"embedding.weight": torch.empty(shape, dtype=torch.bfloat16)}
    return State("embedding", "One huge embedding", fill(tensors))


def _metadata(scale: float) -> State:
    """No tensors: its only workload opens checkpoints with many chunks."""
    count = max(1_000, round(1_000_000 * scale) // 1_000 * 1_000)
    return State("metadata", f"{count:,} chunks", {}, count)


MAKERS: dict[str, Callable[[float], State]] = {
    "transformer": _transformer,
    "experts": _experts,
    "embedding": _embedding,
    "metadata": _metadata,
    "small": _small,
}
"""The states, in the order in which they are measured."""


def make_state(name: str, scale: float) -> State:
    return MAKERS[name](scale)
