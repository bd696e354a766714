"""Element types: conversion between the codes of Cairn and the dtypes of torch and numpy."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cairn._cairn import DTYPES
from cairn.errors import Invalid

if TYPE_CHECKING:
    import numpy as np
    import torch

_NAMES = {code: name for name, (code, _) in DTYPES.items()}
_ITEM_BYTES = {code: item_bytes for code, item_bytes in DTYPES.values()}

# Names that numpy and Cairn share. bfloat16 and similar dtypes exist in torch only.
_NUMPY_NAMES = ["bool", "float16", "float32", "float64", "complex64", "complex128"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]


def loaded_numpy() -> ModuleType | None:
    """numpy if the process has imported it; otherwise no array can exist."""
    numpy = sys.modules.get("numpy")
    # A partly imported numpy does not count.
    return numpy if hasattr(numpy, "ndarray") else None


def is_array(value: Any) -> bool:
    """True for a numpy array."""
    numpy = loaded_numpy()
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_numpy_scalar(value: Any) -> bool:
    numpy = loaded_numpy()
    return numpy is not None and isinstance(value, numpy.generic)


def is_numpy_text(value: Any) -> bool:
    """True for np.str_ and np.bytes_, which are str and bytes, too, and are saved as these."""
    return isinstance(value, (str, bytes)) and is_numpy_scalar(value)


def loaded_torch() -> ModuleType | None:
    """torch if the process has imported it; otherwise no torch tensor can exist."""
    torch = sys.modules.get("torch")
    # A partly imported torch does not count: its tensors are usable once torch.nn is.
    return torch if hasattr(torch, "nn") else None


def require_torch() -> ModuleType:
    """torch, imported now if necessary. Raises Invalid if it is not installed."""
    try:
        import torch
    except ImportError:
        raise Invalid("this step holds torch tensors: install torch to read them") from None
    return torch


@functools.cache
def torch_codes() -> dict[torch.dtype, int]:
    """The codes of Cairn by torch dtype."""
    torch = require_torch()
    # An older torch lacks some dtypes; a newer one has dtypes that this build does not know.
    return {
        getattr(torch, name): code for name, (code, _) in DTYPES.items() if hasattr(torch, name)
    }


@functools.cache
def _torch_dtypes() -> dict[int, torch.dtype]:
    return {code: dtype for dtype, code in torch_codes().items()}


@functools.cache
def _numpy_codes() -> dict[np.dtype, int]:
    import numpy as np

    return {np.dtype(name): DTYPES[name][0] for name in _NUMPY_NAMES}


@functools.cache
def _numpy_dtypes() -> dict[int, np.dtype]:
    return {code: dtype for dtype, code in _numpy_codes().items()}


def code_of_torch(dtype: torch.dtype) -> int | None:
    """The code of Cairn, or None for a dtype that Cairn does not support."""
    return torch_codes().get(dtype)


def code_of_numpy(dtype: np.dtype) -> int | None:
    """The code of a dtype in native byte order, or None for one that Cairn does not support."""
    return _numpy_codes().get(dtype)


def torch_dtype(code: int) -> torch.dtype:
    """The dtype of torch. Raises Invalid if the installed torch does not have it."""
    dtype = _torch_dtypes().get(code)
    if dtype is None:
        raise Invalid(f"the installed torch has no dtype {name_of(code)}: use a newer one")
    return dtype


def numpy_dtype(code: int) -> np.dtype:
    """The dtype of numpy. Raises Invalid if numpy does not have it."""
    dtype = _numpy_dtypes().get(code)
    if dtype is None:
        raise Invalid(f"numpy has no dtype {name_of(code)}: choose another one, or other keys")
    return dtype


def name_of(code: int) -> str:
    """The name of torch, without "torch."."""
    return _NAMES.get(code, f"unknown ({code})")


def item_bytes(code: int) -> int:
    """Bytes of one element."""
    return _ITEM_BYTES[code]
