"""Addresses of stores, and of steps: ADDRESS, ADDRESS@STEP and ADDRESS@TAG; numbers of steps, and
the texts that choose steps."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from cairn.errors import Invalid, Unavailable

_NOT_DIRECTORIES = ("s3:", "rados:", "memory:")
_SERVER_PARAMETERS = ("endpoint=", "conf=")


def is_directory(address: str) -> bool:
    """Whether the address names a directory: ``PATH`` or ``file:PATH``."""
    return not address.startswith(_NOT_DIRECTORIES)


def absolute_address(address: str | os.PathLike[str]) -> str:
    """The same store after a change of the working directory. For an address that is kept: what
    was opened must not become another store.

    Raises Invalid if the address is empty, not text, or begins with ``~``.
    """
    text = os.fspath(address)
    if not isinstance(text, str) or not text:
        raise Invalid(f"address {address!r}: a str or a path of str is needed")
    kind, colon, path = text.partition(":")
    if not colon or "/" in kind:
        return _absolute_path(text)
    if kind == "file" and path:
        return f"file:{_absolute_path(path)}"
    if kind == "rados":
        return re.sub(r"(?<=[?&]conf=)[^&]+", lambda found: _absolute_path(found[0]), text)
    return text


def _absolute_path(path: str) -> str:
    if path.startswith("~"):
        raise Invalid(
            f"address '{path}': only a shell replaces '~' by the home directory: write "
            f"os.path.expanduser('{path}'), or './{path}' for a directory of this name"
        )
    try:
        return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    except OSError as error:
        raise Unavailable(
            f"address '{path}': the working directory cannot be found: {error.strerror}"
        ) from None


def canonical_address(address: str) -> str:
    """The same text for all spellings of a store's address: the real path of a directory, or an
    address with only those parameters that name a server."""
    if is_directory(address):
        return os.path.realpath(address.removeprefix("file:"))
    place, _, parameters = address.partition("?")
    server = [one for one in parameters.split("&") if one.startswith(_SERVER_PARAMETERS)]
    return "?".join([place.rstrip("/"), *sorted(server)])


class StepAddress(NamedTuple):
    """A store, and a step of it by number or tag; None: no step is named."""

    store: str
    step: int | str | None


def parse_address(text: str | os.PathLike[str]) -> StepAddress:
    """The store and the step of an address. What exists as a path names no step. Raises Invalid if
    no store is named."""
    text = os.fspath(text)
    store, at, name = text.rpartition("@")
    exists = is_directory(text) and os.path.exists(text.removeprefix("file:"))
    if not at or not name or "/" in name or exists:
        return StepAddress(text, None)
    if not store:
        raise Invalid(f"'{text}' does not name a store; write STORE or STORE@STEP")
    return StepAddress(store, int(name) if name.isascii() and name.isdigit() else name)


def step_number(step: int) -> int:
    """`step` as an int. Raises Invalid if it is out of range, TypeError if it is not an integer; a
    bool is none, because it is probably the argument of another parameter."""
    if isinstance(step, bool):
        raise TypeError(f"step={step}: a step is an integer, not a bool")
    number = operator.index(step)
    if not 0 <= number < 2**64:
        raise Invalid(f"step {number}: steps are 0 to 2**64 - 1")
    return number


def best_texts(keep_best: str | Iterable[str]) -> list[str]:
    """The texts ``METRIC:N`` of an argument that is one or several of them."""
    return [keep_best] if isinstance(keep_best, str) else list(keep_best)
