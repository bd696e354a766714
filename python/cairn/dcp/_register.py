"""`register`: stores as checkpoint ids of ``dcp.save`` and ``dcp.load`` without a storage.

torch has no registry of storages: `torch.distributed.checkpoint._storage_utils._storage_setup`
tries the class FileSystemReader (or FileSystemWriter) of its module, and then fsspec's. This module
replaces the two names there by classes that make Cairn's storage for directories that are stores,
and torch's own for everything else. Whether torch uses them is then tried out.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter, _storage_utils

from cairn.dcp._location import locate
from cairn.dcp._reader import CairnReader
from cairn.dcp._writer import CairnWriter
from cairn.errors import Invalid


def register() -> None:
    """Lets ``dcp.load``, ``dcp.save`` and ``dcp.async_save`` use a store without being given a
    reader or writer, in this process.

        cairn.dcp.register()
        dcp.load(state, checkpoint_id="runs/gpt@100")

    A ``checkpoint_id`` that is the directory of an existing store, or ``DIRECTORY@STEP``, is then
    loaded by :class:`CairnReader` and saved by :class:`CairnWriter`; everything else as before.
    A new store still needs a writer. All ranks must make this call. It may be made again.

    Threads: call it before other threads save or load.

    Raises Invalid, and changes nothing, if this version of torch chooses storages in another way.
    """
    before = {name: getattr(_storage_utils, name, None) for name in _CLASSES}
    try:
        for name, chooser in _CLASSES.items():
            setattr(_storage_utils, name, chooser)
        works = _is_used()
    except Exception:
        works = False
    if works:
        return
    for name, value in before.items():
        setattr(_storage_utils, name, value)
    raise Invalid(
        "this version of torch does not choose storages in the way that register() extends: pass "
        "storage_reader=CairnReader(...) or storage_writer=CairnWriter(...)"
    )


def _chooser(ours: type, other: type) -> type:
    """A class that makes Cairn's storage for stores, and torch's for everything else."""

    class Chooser(other):  # type: ignore[misc, valid-type]
        def __new__(cls, path: Any, *args: Any, **kwargs: Any) -> Any:
            return ours(path) if _is_store(path) else other(path, *args, **kwargs)

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            return _is_store(checkpoint_id) or other.validate_checkpoint_id(checkpoint_id)

    return Chooser


_CLASSES = {
    "FileSystemReader": _chooser(CairnReader, FileSystemReader),
    "FileSystemWriter": _chooser(CairnWriter, FileSystemWriter),
}


def _is_store(checkpoint_id: Any) -> bool:
    try:
        location = locate(checkpoint_id, None)
    except (Invalid, TypeError):
        return False
    if location is None or not location.is_directory:
        return False
    return os.path.isfile(os.path.join(location.path, "CAIRN"))


def _is_used() -> bool:
    setup = _storage_utils._storage_setup
    with tempfile.TemporaryDirectory(prefix="cairn-register-") as folder:
        store, other = Path(folder) / "store", Path(folder) / "other"
        for path in (store, other):
            path.mkdir()
        (store / "CAIRN").touch()
        return (
            isinstance(setup(None, store, reader=True), CairnReader)
            and isinstance(setup(None, f"{store}@3", reader=False), CairnWriter)
            and type(setup(None, other, reader=True)) is FileSystemReader
            and type(setup(None, other, reader=False)) is FileSystemWriter
        )
