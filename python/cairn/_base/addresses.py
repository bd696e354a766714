"""Addresses of stores."""

from __future__ import annotations

import os

from cairn.errors import Invalid

_NOT_DIRECTORIES = ("s3:", "rados:", "memory:")
_SERVER_PARAMETERS = ("endpoint=", "conf=")


def is_directory(address: str) -> bool:
    """Whether the address names a directory: ``PATH`` or ``file:PATH``."""
    return not address.startswith(_NOT_DIRECTORIES)


def absolute_address(address: str | os.PathLike[str]) -> str:
    """The same store after a change of the working directory. For an address that is kept: what
    was opened must not become another store.

    Raises Invalid if the address is empty or not text.
    """
    text = os.fspath(address)
    if not isinstance(text, str) or not text:
        raise Invalid(f"address {address!r}: a str or a path of str is needed")
    kind, colon, path = text.partition(":")
    if colon and "/" not in kind:
        if kind != "file" or not path:
            return text
        return f"file:{os.path.join(os.getcwd(), path)}"
    return os.path.join(os.getcwd(), text)


def canonical_address(address: str) -> str:
    """The same text for all spellings of a store's address: the real path of a directory, or an
    address with only those parameters that name a server."""
    if is_directory(address):
        return os.path.realpath(address.removeprefix("file:"))
    place, _, parameters = address.partition("?")
    server = [one for one in parameters.split("&") if one.startswith(_SERVER_PARAMETERS)]
    return "?".join([place.rstrip("/"), *sorted(server)])
