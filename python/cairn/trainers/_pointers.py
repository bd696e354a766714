"""Pointer files: small files at the paths where trainers expect checkpoints.

A trainer lists, links, copies and deletes its checkpoints as files. A pointer file names the store
and the step that contain the checkpoint, as JSON:

    {"cairn": 1, "store": "../store", "step": 100}

A store in a directory is given relative to the folder of the pointer file, so that both can be
moved together. The file is written when the step is durable, and removed before the step is
deleted: a pointer never refers to a step that does not exist yet.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from cairn._base.addresses import canonical_address, is_directory
from cairn._base.files import replacing
from cairn.errors import Corrupt, Invalid, NotFound
from cairn.store import Store

_VERSION = 1
_MAX_BYTES = 64 << 10


class Pointer(NamedTuple):
    """Where a checkpoint is."""

    store: str
    """Address of the store."""
    step: int
    prefix: str = ""
    """The prefix of the keys of this checkpoint; empty for the complete step."""


def write_pointer(
    path: str | os.PathLike[str], pointer: Pointer, *, is_copied: bool = False
) -> None:
    """Writes a pointer file, durably and at once: readers see the old file or the new one.
    `is_copied`: the file will be copied to another folder, so the store has its absolute path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    store = pointer.store
    if is_directory(store):
        absolute = os.path.abspath(store.removeprefix("file:"))
        store = absolute if is_copied else os.path.relpath(absolute, path.parent.resolve())
    fields = {"cairn": _VERSION, "store": store, "step": pointer.step}
    if pointer.prefix:
        fields["prefix"] = pointer.prefix
    with replacing(path) as file:
        file.write(json.dumps(fields).encode())


def read_pointer(path: str | os.PathLike[str]) -> Pointer:
    """Reads a pointer file. Raises NotFound if there is no such file, Invalid if it is something
    else, and Corrupt if it was damaged."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise NotFound(f"there is no checkpoint file {path}", file=str(path)) from None
    if not data.lstrip().startswith(b'{"cairn"'):
        raise Invalid(
            f"{path} was not written by Cairn: load it with the plugin that has saved it",
            file=str(path),
        )
    try:
        fields = json.loads(data)
        version, store, step = fields["cairn"], fields["store"], fields["step"]
        prefix = fields.get("prefix", "")
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{path} is damaged ({error}): open the store", file=str(path)) from None
    if version != _VERSION or not isinstance(store, str) or type(step) is not int:
        raise Invalid(
            f"{path} has a version that this release cannot read: use a newer Cairn", file=str(path)
        )
    if is_directory(store):
        store = os.path.normpath(path.resolve().parent / store.removeprefix("file:"))
    return Pointer(store, step, prefix)


def find_pointer(path: str | os.PathLike[str]) -> Pointer | None:
    """What a pointer file names; None if there is none that can be read."""
    try:
        return read_pointer(path)
    except (NotFound, Invalid, Corrupt):
        return None


def free_step(store: Store, wanted: int) -> int:
    """The first number from `wanted` on that no step has."""
    taken = set(store.steps())
    while wanted in taken:
        wanted += 1
    return wanted


def choose_step(store: Store, folder: Path, pattern: str) -> int:
    """The step of a checkpoint: the one that its folder refers to already; otherwise the number at
    the end of the name of the folder, or the next free one, because another run may have saved that
    step; after the latest step if the name has no number. `pattern`: the names of the pointer files
    in a folder."""
    own = canonical_address(store.address)

    for file in sorted(folder.glob(pattern)):
        known = find_pointer(file)
        if known is not None and canonical_address(known.store) == own:
            return known.step  # the checkpoint is saved again
    number = re.search(r"(\d+)$", folder.name)
    if number is None:
        latest = store.latest()
        return free_step(store, 0 if latest is None else latest + 1)
    return free_step(store, int(number[1]))
