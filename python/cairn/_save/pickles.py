"""Leaves that are saved as pickles, if the caller allows it."""

from __future__ import annotations

import enum
import io
import pickle
from typing import Any

from cairn import _cairn
from cairn._tensors.sources import is_torch_tensor
from cairn._tensors.stateful import AT_TOP, is_stateful
from cairn.errors import Invalid, refuse


def pickled(value: Any, fqn: str, allow_pickle: bool) -> _cairn.Pickle:
    """Pickles a leaf. Raises Invalid if this is not allowed, or if it contains tensors."""
    if not allow_pickle:
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        raise refuse(fqn, f"of type {name}, which Cairn does not save", _way_out(value))
    buffer = io.BytesIO()
    try:
        _TensorFreePickler(buffer, fqn).dump(value)
    except Invalid:
        raise
    except Exception as error:
        way_out = f"exclude it from the state ({error})"
        what = f"a {type(value).__name__} that cannot be pickled"
        raise refuse(fqn, what, way_out) from error
    return _cairn.Pickle(buffer.getvalue())


class _TensorFreePickler(pickle.Pickler):
    """Refuses tensors: in a pickle they could not be chunked, shared or partly loaded."""

    def __init__(self, file: io.BytesIO, fqn: str) -> None:
        super().__init__(file, protocol=4)
        self._fqn = fqn

    def persistent_id(self, obj: Any) -> None:
        if is_torch_tensor(obj):
            raise refuse(
                self._fqn,
                "an object that contains tensors, which Cairn does not pickle",
                "put the tensors into dicts and lists",
            )


def _way_out(value: Any) -> str:
    """How to save a leaf or container of an unsupported type."""
    otherwise = "or pass allow_pickle=True to save and load"
    if isinstance(value, enum.Enum):
        return f"save its .value, {otherwise}"
    if isinstance(value, dict):
        return f"convert it with dict(...), {otherwise}"
    if isinstance(value, tuple):
        return f"convert it with tuple(...) or ._asdict(), {otherwise}"
    if isinstance(value, (list, set, frozenset)):
        return f"convert it with list(...), {otherwise}"
    if isinstance(value, io.BytesIO):  # in a list that torch.distributed.checkpoint saves as one
        return f"convert it with .getvalue(), {otherwise}"
    if is_stateful(value):
        return f"{AT_TOP}, {otherwise}"
    if isinstance(value, (bytearray, memoryview)):
        return f"convert it with bytes(...), {otherwise}"
    for plain in (str, int, float, complex, bytes):
        if isinstance(value, plain):
            return f"convert it with {plain.__name__}(...), {otherwise}"
    supported = "tensors, numpy arrays, None, bool, int, float, complex, str and bytes"
    return f"only {supported} are supported; convert it, {otherwise}"
