"""The states that are saved: float32 tensors with the sizes of a small transformer."""

from __future__ import annotations

import zlib

import numpy as np

Arrays = dict[str, np.ndarray]
WIDTH = 512
PAGE_VALUES = 1024  # per page of memory
CHANGED = ("layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v")
"""One hundredth of the bytes, with 24 layers: what a step of the kind `part` changes."""


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"embedding": (8192, WIDTH)}
    for layer in range(layers):
        prefix = f"layers.{layer}"
        found |= {f"{prefix}.attn.{name}": (WIDTH, WIDTH) for name in "qkvo"}
        found |= {f"{prefix}.mlp.up": (4 * WIDTH, WIDTH), f"{prefix}.mlp.down": (WIDTH, 4 * WIDTH)}
        found |= {f"{prefix}.norm{i}": (WIDTH,) for i in (1, 2)}
    return found


def make(layers: int, step: int, kind: str) -> Arrays:
    """The state of a step. Of the kind `all`, all values differ from those of every other step; of
    the kind `part`, only those of CHANGED."""
    arrays = {}
    for key, shape in shapes(layers).items():
        differs = kind == "all" or key in CHANGED
        seed = (zlib.crc32(key.encode()), step if differs else 0)
        generator = np.random.Generator(np.random.SFC64(seed))
        arrays[key] = generator.standard_normal(shape, dtype=np.float32)
    return arrays


def quarter(arrays: Arrays, axis: int) -> dict[str, tuple[slice, ...]]:
    """What the second of four ranks has of matrices that are divided by rows (0) or columns (1)."""
    found = {}
    for key, array in arrays.items():
        if array.ndim == 2:
            part = array.shape[axis] // 4
            box = [slice(None), slice(None)]
            box[axis] = slice(part, 2 * part)
            found[key] = tuple(box)
    return found


def describe(layers: int) -> dict[str, float]:
    """What the page states about the states."""

    def mebibytes(layers: int) -> float:
        return sum(4 * int(np.prod(shape)) for shape in shapes(layers).values()) / 2**20

    return {
        "tensors": len(shapes(layers)),
        "mebibytes": mebibytes(layers),
        "flip_mebibytes": mebibytes(1),
    }
