"""The states that an import saves: only what a store can hold, in bounded memory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cairn._interop.pickles import KEY_TYPES, Name, Object, Reader, Storage
from cairn._tensors.sources import BoxedTensor
from cairn.errors import Error, Invalid

_MAX_DEPTH = 1000
_MAX_REPEATED_BYTES = 1 << 30
_MAX_NODES = 1 << 18
_MAX_TEXT_BYTES = 256 << 20
_VALUES = (type(None), bool, int, float, complex)
_KEY_PROBLEM = "this dict has a key that is not a str, int, float, bool or None"


class Checker:
    """Replaces what was read by what can be saved.

    Args:
        skip_unknown: leaves out other values, and lists them in `left_out`; otherwise they are an
            error that names the key.
    """

    def __init__(self, skip_unknown: bool) -> None:
        self._skip_unknown = skip_unknown
        self._nodes, self._text = _MAX_NODES, _MAX_TEXT_BYTES
        self._repeated_bytes = 0
        self.left_out: list[tuple[str, str]] = []
        self.tensors_with_attributes = 0

    def count(self, reader: Reader) -> None:
        """Adds a pickle, which may have as many values as bytes."""
        self._nodes += reader.size
        self._text += 64 * reader.size
        self._repeated_bytes += reader.repeated_bytes
        self.tensors_with_attributes += reader.tensors_with_attributes
        if self._repeated_bytes > _MAX_REPEATED_BYTES:
            raise Invalid(
                "the tensors repeat elements of their storages, as expand() does, and are more "
                "than 1 GiB longer than these; clone them before torch.save"
            )

    def check(self, value: Any, key: str = "", depth: int = 0) -> Any:
        """The value without what is left out, or `LEFT_OUT`. Raises Invalid."""
        self._nodes -= 1
        self._text -= len(key) + (len(value) if type(value) in (str, bytes) else 0)
        if self._nodes < 0 or self._text < 0:
            raise Invalid(
                "the pickle repeats its values so often that the state exceeds the limits", key=key
            )
        if type(value) in (dict, OrderedDict, Counter):
            return self._dict(value, key, self._deeper(key, depth))
        if type(value) in (list, tuple, torch.Size):
            return self._list(value, key, self._deeper(key, depth))
        if type(value) in (*_VALUES, str, bytes) or isinstance(value, (torch.Tensor, BoxedTensor)):
            return value
        if type(value) is Object:
            name = value.name
            return self._leave_out(key, name if " " in name else f"an object of '{name}'")
        what = {Name: f"'{value}'", Storage: "a bare storage"}.get(type(value))
        return self._leave_out(key, what or f"a {type(value).__name__}")

    def _deeper(self, key: str, depth: int) -> int:
        if depth == _MAX_DEPTH:
            raise Invalid(
                f"values are nested deeper than {_MAX_DEPTH} levels; does one contain itself?",
                key=key[:200],
            )
        return depth + 1

    def _dict(self, value: dict[Any, Any], key: str, depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = type(value)()
        for name, child in value.items():
            if type(name) not in KEY_TYPES:
                self._leave_out(key, _KEY_PROBLEM, "")
                continue
            kept = self.check(child, _join(key, name), depth)
            if kept is not LEFT_OUT:
                result[name] = kept
        return LEFT_OUT if value and not result else result

    def _list(self, value: Any, key: str, depth: int) -> Any:
        kept = [self.check(child, _join(key, i), depth) for i, child in enumerate(value)]
        if any(child is LEFT_OUT for child in kept):
            return {i: child for i, child in enumerate(kept) if child is not LEFT_OUT} or LEFT_OUT
        return kept if type(value) is list else type(value)(kept)

    def _leave_out(self, key: str, what: str, why: str = " cannot be kept in a store") -> Any:
        if not self._skip_unknown:
            raise Invalid(f"{what}{why}; --skip-unknown leaves it out", key=key)
        self.left_out.append((key, what + why))
        return LEFT_OUT


LEFT_OUT = object()


def _join(key: str, name: Any) -> str:
    try:
        return f"{key}.{name}" if key else str(name)
    except ValueError:  # an int with thousands of digits
        raise Invalid("the dict has an int key too long for a name", key=key) from None


def join(states: list[Any], prefix: str) -> Any:
    """One state of several dicts, below `prefix`. Raises Invalid."""
    states = [{} if state is LEFT_OUT else state for state in states]
    joined = states[0]
    if len(states) > 1:
        joined = {}
        for state in states:
            if not isinstance(state, dict):
                raise Invalid(
                    "several files can be joined only if each of them holds a dict; give one file"
                )
            if double := next((key for key in state if key in joined), None):
                raise Invalid(f"two files have a value with the name '{double}'", key=str(double))
            joined.update(state)
    return {prefix: joined} if prefix else joined


@contextmanager
def located(**places: Any) -> Iterator[None]:
    """Adds the places to errors that lack them."""
    try:
        yield
    except Error as error:
        for name, value in places.items():
            if getattr(error, name) is None:
                setattr(error, name, value)
        raise


@contextmanager
def described() -> Iterator[None]:
    """Around `located`: completes the texts of errors with their places."""
    try:
        yield
    except Error as error:
        places = {name: getattr(error, name) for name in ("key", "step", "file", "offset")}
        known = [f"{name} {place}" for name, place in places.items() if place is not None]
        raise type(error)(f"{error} ({', '.join(known)})" if known else str(error)) from None
