"""Element types: Cairn's codes, torch's dtypes and numpy's."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from cairn._cairn import DTYPES
from cairn.errors import Invalid

if TYPE_CHECKING:
    import torch

_NAMES = {code: name for name, (code, _) in DTYPES.items()}
_ITEM_BYTES = {code: item_bytes for code, item_bytes in DTYPES.values()}

# numpy's names that mean the same as Cairn's; bfloat16 and the like are torch's alone.
_NUMPY_NAMES = ["bool", "float16", "float32", "float64", "complex64", "complex128"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]
_FROM_NUMPY = {np.dtype(name): DTYPES[name][0] for name in _NUMPY_NAMES}
_TO_NUMPY = {code: dtype for dtype, code in _FROM_NUMPY.items()}


def loaded_torch() -> ModuleType | None:
    """torch if the process has imported it; without it nobody can hold a torch tensor."""
    torch = sys.modules.get("torch")
    # A half-imported torch is none yet; its tensors are complete once torch.nn is.
    return torch if hasattr(torch, "nn") else None


def require_torch() -> ModuleType:
    """torch, imported now if need be."""
    try:
        import torch
    except ImportError:
        raise Invalid("this step holds torch tensors: install torch to read them") from None
    return torch


@functools.cache
def torch_codes() -> dict[torch.dtype, int]:
    """Cairn's codes by torch's dtypes."""
    torch = require_torch()
    # An older torch lacks some dtypes, a newer one has dtypes that this build does not know.
    return {
        getattr(torch, name): code for name, (code, _) in DTYPES.items() if hasattr(torch, name)
    }


@functools.cache
def _torch_dtypes() -> dict[int, torch.dtype]:
    return {code: dtype for dtype, code in torch_codes().items()}


def code_of_torch(dtype: torch.dtype) -> int | None:
    """Cairn's code, or None for a dtype that Cairn cannot keep."""
    return torch_codes().get(dtype)


def code_of_numpy(dtype: np.dtype) -> int | None:
    """Cairn's code of a dtype in native byte order, or None for one that Cairn cannot keep."""
    return _FROM_NUMPY.get(dtype)


def torch_dtype(code: int) -> torch.dtype:
    """Raises Invalid if the installed torch has no such dtype."""
    dtype = _torch_dtypes().get(code)
    if dtype is None:
        raise Invalid(f"the installed torch has no dtype {name_of(code)}: use a newer one")
    return dtype


def numpy_dtype(code: int) -> np.dtype:
    """Raises Invalid if numpy has no such dtype."""
    dtype = _TO_NUMPY.get(code)
    if dtype is None:
        raise Invalid(f"numpy has no dtype {name_of(code)}")
    return dtype


def name_of(code: int) -> str:
    """torch's name without "torch."."""
    return _NAMES.get(code, f"unknown ({code})")


def item_bytes(code: int) -> int:
    """Bytes of one element."""
    return _ITEM_BYTES[code]
