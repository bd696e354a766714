"""`register`: stores as checkpoint ids of ``dcp.save`` and ``dcp.load`` without a storage.

torch has no registry of storages: its functions to save and to load choose one by calling
`_storage_setup`, which their modules import from `torch.distributed.checkpoint._storage_utils`.
This module replaces that name in both modules.
"""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.checkpoint import _storage_utils, state_dict_loader, state_dict_saver

from cairn import _cairn
from cairn.dcp._location import Location, locate
from cairn.dcp._reader import CairnReader
from cairn.dcp._writer import CairnWriter
from cairn.errors import Corrupt, Error, Invalid, NotFound

_NAME = "_storage_setup"
_CHOOSING = (state_dict_loader, state_dict_saver)


_creates = False
"""Whether new checkpoints become stores."""


def register(*, new: bool = False) -> None:
    """Lets ``dcp.load``, ``dcp.save`` and ``dcp.async_save`` use a store without being given a
    reader or writer, in this process.

        cairn.dcp.register()
        dcp.load(state, checkpoint_id="runs/gpt@100")

    A ``checkpoint_id`` that is the address of an existing store, or ``ADDRESS@STEP``, is then
    loaded by :class:`CairnReader` and saved by :class:`CairnWriter`; everything else as before.
    All ranks must make this call. It may be made again.

    Args:
        new: a ``checkpoint_id`` without a checkpoint becomes a store when it is saved, too, for
            programs that save each checkpoint to a separate directory. Remains so for later calls.

    Threads: call it before other threads save or load.

    Raises Invalid, and changes nothing, if this version of torch chooses storages in another way.
    """
    global _creates  # noqa: PLW0603 - like the functions that are replaced
    choosers = {getattr(module, _NAME, None) for module in _CHOOSING}
    if choosers == {_storage_or_store}:
        _creates = _creates or new
        return
    if choosers != {getattr(_storage_utils, _NAME, None)} or None in choosers:
        raise Invalid(
            "this version of torch does not choose storages in the way that register() extends: "
            "pass storage_reader=CairnReader(...) or storage_writer=CairnWriter(...)"
        )
    _creates = new
    for module in _CHOOSING:
        setattr(module, _NAME, _storage_or_store)


def _storage_or_store(storage: Any, checkpoint_id: Any, reader: bool = False) -> Any:
    if storage is None and _is_for_store(checkpoint_id, reader):
        return CairnReader(checkpoint_id) if reader else CairnWriter(checkpoint_id)
    return getattr(_storage_utils, _NAME)(storage, checkpoint_id, reader)


def _is_for_store(checkpoint_id: Any, reader: bool) -> bool:
    try:
        location = locate(checkpoint_id, None)
        if location is None:
            return False
        may_create = _creates and not reader
        return _has(location, "CAIRN") or (may_create and not _has(location, ".metadata"))
    except (Error, TypeError):
        return False  # torch may know this place


def _has(location: Location, name: str) -> bool:
    """Whether an object exists. Raises Unavailable."""
    if location.is_directory:
        return os.path.isfile(os.path.join(location.path, name))
    try:
        _cairn.read_object(location.address, name)
    except NotFound:
        return False
    except Corrupt:
        pass  # it is longer than what is read
    return True
