"""Addresses of stores."""

from __future__ import annotations

import os


def folder_of(address: str) -> str:
    """The canonical path of a store's directory, which is equal for all spellings of its
    address."""
    return os.path.realpath(address.removeprefix("file:"))
