"""Addresses of stores."""

from __future__ import annotations

import os

_NOT_DIRECTORIES = ("s3:", "rados:", "memory:")
_SERVER_PARAMETERS = ("endpoint=", "conf=")


def is_directory(address: str) -> bool:
    """Whether the address is that of a directory: ``PATH`` or ``file:PATH``."""
    return not address.startswith(_NOT_DIRECTORIES)


def canonical_address(address: str) -> str:
    """The same text for all spellings of a store's address: the real path of a directory, or an
    address with only those parameters that name a server."""
    if is_directory(address):
        return os.path.realpath(address.removeprefix("file:"))
    place, _, parameters = address.partition("?")
    server = [one for one in parameters.split("&") if one.startswith(_SERVER_PARAMETERS)]
    return "?".join([place.rstrip("/"), *sorted(server)])
