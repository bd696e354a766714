"""`register`: stores as checkpoint ids of ``dcp.save`` and ``dcp.load`` without a storage.

torch has no registry of storages: its functions to save and to load choose one by calling
`_storage_setup`, which their modules import from `torch.distributed.checkpoint._storage_utils`.
This module replaces that name in both modules.
"""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.checkpoint import _storage_utils, state_dict_loader, state_dict_saver

from cairn.dcp._location import locate
from cairn.dcp._reader import CairnReader
from cairn.dcp._writer import CairnWriter
from cairn.errors import Invalid

_NAME = "_storage_setup"
_CHOOSING = (state_dict_loader, state_dict_saver)


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
    choosers = {getattr(module, _NAME, None) for module in _CHOOSING}
    if choosers == {_storage_or_store}:
        return
    if choosers != {getattr(_storage_utils, _NAME, None)} or None in choosers:
        raise Invalid(
            "this version of torch does not choose storages in the way that register() extends: "
            "pass storage_reader=CairnReader(...) or storage_writer=CairnWriter(...)"
        )
    for module in _CHOOSING:
        setattr(module, _NAME, _storage_or_store)


def _storage_or_store(storage: Any, checkpoint_id: Any, reader: bool = False) -> Any:
    if storage is None and _is_store(checkpoint_id):
        return CairnReader(checkpoint_id) if reader else CairnWriter(checkpoint_id)
    return getattr(_storage_utils, _NAME)(storage, checkpoint_id, reader)


def _is_store(checkpoint_id: Any) -> bool:
    try:
        location = locate(checkpoint_id, None)
    except (Invalid, TypeError):
        return False
    if location is None or not location.is_directory:
        return False
    return os.path.isfile(os.path.join(location.path, "CAIRN"))
