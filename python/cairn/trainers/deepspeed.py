"""Cairn as the checkpoint engine of DeepSpeed.

    from cairn.trainers.deepspeed import CairnCheckpointEngine

    engine, *_ = deepspeed.initialize(model=model, config=config)
    engine.checkpoint_engine = CairnCheckpointEngine()
    engine.save_checkpoint("runs/a")
    engine.load_checkpoint("runs/a")
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import (
    CheckpointCommitInfo,
    CheckpointEngine,
)
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address

from cairn._base.addresses import absolute_address
from cairn._base.patterns import literal
from cairn.errors import Invalid
from cairn.store import SaveHandle, Store
from cairn.store import open as open_store
from cairn.trainers._pointers import Pointer, choose_step, read_pointer, write_pointer

_TYPE = "deepspeed_type"
_SCALERS = {one.__name__: one for one in (LossScaler, DynamicLossScaler)}


class CairnCheckpointEngine(CheckpointEngine):
    """Saves the files of a DeepSpeed checkpoint as one step of a store, together on all ranks.

    Where DeepSpeed expects a file, such as ``global_step10/mp_rank_00_model_states.pt``, there is a
    small file that names the store and the step. The keys of the step begin with the name of the
    file. The number of the step is the number at the end of the tag, or the next free one after the
    latest step; the next free one, too, if another tag has that step. A checkpoint is complete or
    absent: DeepSpeed's ``latest`` changes when the step is durable.

    DeepSpeed's objects (loss scalers, addresses of fragments) are saved as plain values.

    With ``async_``, the next ``engine.step()`` copies the state before it changes the parameters,
    and the checkpoint is written in the background. The files and ``latest`` are written by the
    first ``engine.step()`` after the step is durable, by :meth:`wait`, or by the next
    ``save_checkpoint``. Call ``engine.destroy()`` or :meth:`close` at the end of the training.

    Threads: one at a time, on all ranks of the default process group.

    Args:
        store: address of the store; by default ``cairn-store`` in the folder of the checkpoints.
        async_: saves in the background.
        allow_pickle: pickles other objects, such as those in a ``client_state``.
        options: further arguments of :meth:`cairn.Store.save`, such as ``tuning``.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        async_: bool = False,
        allow_pickle: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.name = "CairnCheckpointEngine"
        self._address = None if store is None else absolute_address(store)
        self._options = {"allow_pickle": allow_pickle, "overwrite": True, **options}
        self._allow_pickle = allow_pickle
        self._store: Store | None = None
        self._folder: Path | None = None
        self._files: dict[Path, Any] = {}
        self._others = TorchCheckpointEngine()
        self._async = async_
        self._info: CheckpointCommitInfo | None = None  # of a checkpoint that is not committed
        self._running: tuple[SaveHandle, dict[Path, Pointer]] | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """Begins a checkpoint. With ``async_``, completes the one before."""
        self.wait()
        self._info = info
        self._folder = Path(info.save_dir).absolute() / info.tag
        self._files = {}

    def save(self, state_dict: Any, path: str) -> None:
        """Adds a file to the checkpoint. It is written by :meth:`commit`; until then, its tensors
        must not change. A file outside the folder of the checkpoint (``save_16bit_model``) is
        written as DeepSpeed does."""
        file = Path(path).absolute()
        if self._folder is None or self._folder not in file.parents:
            self._others.save(state_dict, path)
            return
        self._files[file] = _encoded(state_dict)

    def commit(self, info: CheckpointCommitInfo) -> bool:
        """Saves the step on all ranks, or waits for it, and then writes the files that refer to it.

        Raises Invalid for objects that need ``allow_pickle``, and the other errors of
        :meth:`cairn.Store.save`, on all ranks.
        """
        if self._async:
            self.wait()
            return True
        self._info = None
        found = self._take_files()
        if found is not None:
            store, step, state, pointers = found
            store.save(step, state, **self._options)
            self._write(pointers)
        return True

    def is_decoupled(self) -> bool:
        """Whether DeepSpeed asks before each of its steps if there is a checkpoint to commit."""
        return self._async

    def get_commit_info(self) -> CheckpointCommitInfo | None:
        """The checkpoint that DeepSpeed commits now, before its next step. With ``async_``, begins
        the save at the first call after ``save_checkpoint``; then, a checkpoint that is durable on
        all ranks."""
        if self._info is None:
            return None
        if self._running is None:
            self._begin()
            return None
        handle, _ = self._running
        return None if _any_rank_has(not handle.done()) else self._info

    def wait(self) -> None:
        """With ``async_``, waits until the last checkpoint is durable and its files are written.

        Collective. Raises the error of the save.
        """
        if not self._async or self._info is None:
            return
        if self._running is None:
            self._begin()
        running, self._running = self._running, None
        info, self._info = self._info, None
        if running is None:
            return  # nothing was saved
        handle, pointers = running
        handle.result()
        self._write(pointers)
        if info.save_latest and dist.get_rank() == 0:
            (Path(info.save_dir) / "latest").write_text(info.tag)

    def cleanup(self) -> None:
        """Called when the engine of DeepSpeed is destroyed: waits for the last checkpoint."""
        self.wait()

    def load(self, path: str, map_location: Any = None) -> Any:
        """Reads one file of a checkpoint. A file that DeepSpeed has written is read as it does."""
        try:
            pointer = read_pointer(path)
        except Invalid:
            return self._others.load(path, map_location)
        device = map_location if isinstance(map_location, (str, torch.device)) else None
        pattern = literal(pointer.prefix)
        with open_store(pointer.store, alone=True) as store:
            found = store.read(
                pattern, pointer.step, device=device, allow_pickle=self._allow_pickle
            )
        return _decoded(found[pointer.prefix])

    def preserves_storage_sharing(self) -> bool:
        """False: DeepSpeed need not copy tensors that are views of larger ones."""
        return False

    def close(self) -> None:
        """Waits for the last checkpoint, and closes the store on all ranks. Otherwise, the store is
        closed when Python ends."""
        try:
            self.wait()
        finally:
            if self._store is not None:
                self._store.close()
                self._store = None

    def _begin(self) -> None:
        """Copies the state, and begins to write it; nothing if no rank has a file."""
        found = self._take_files()
        if found is None:
            self._info = None
            return
        store, step, state, pointers = found
        handle = store.save_async(step, state, **self._options)
        handle.wait_staged()
        self._running = handle, pointers

    def _take_files(self) -> tuple[Store, int, dict[str, Any], dict[Path, Pointer]] | None:
        """The store, the step, its state on this rank, and what the files refer to; None if no rank
        has a file."""
        folder, files = self._folder, self._files
        self._folder, self._files = None, {}
        if folder is None or not _any_rank_has(bool(files)):
            return None
        address = self._address or absolute_address(folder.parent / "cairn-store")
        store = self._opened(address)
        step = store.opened.ranks.on_first(lambda: choose_step(store, folder, "*.pt"))
        names = {file: str(file.relative_to(folder).with_suffix("")) for file in files}
        pointers = {file: Pointer(store.address, step, name) for file, name in names.items()}
        return store, step, {names[file]: state for file, state in files.items()}, pointers

    def _write(self, pointers: dict[Path, Pointer]) -> None:
        def write() -> None:
            for file, pointer in pointers.items():
                write_pointer(file, pointer)

        assert self._store is not None
        self._store.opened.ranks.run_together(write)  # before "latest" is written

    def _opened(self, address: str) -> Store:
        if self._store is not None and self._store.address != address:
            self.close()
        if self._store is None:
            self._store = open_store(address, mode="a")
        return self._store


def _any_rank_has(value: bool) -> bool:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return any(values)


def _encoded(value: Any) -> Any:
    """A copy in which the objects of DeepSpeed are dicts of plain values."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        return kind((key, _encoded(child)) for key, child in value.items())
    if kind in (list, tuple):
        return kind(_encoded(child) for child in value)
    if kind is fragment_address:
        return {_TYPE: "fragment_address", "numel": value.numel, "start": value.start}
    if kind is ZeroStageEnum:
        return {_TYPE: "ZeroStageEnum", "value": int(value)}
    if kind.__name__ in _SCALERS and kind is _SCALERS[kind.__name__]:
        return {_TYPE: kind.__name__, "fields": _encoded(vars(value))}
    return value


def _decoded(value: Any) -> Any:
    """The inverse of `_encoded`."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(_decoded(child) for child in value)
    if kind not in (dict, OrderedDict):
        return value
    if _TYPE not in value:
        return kind((key, _decoded(child)) for key, child in value.items())
    name = value[_TYPE]
    if name == "fragment_address":
        return fragment_address(numel=value["numel"], start=value["start"])
    if name == "ZeroStageEnum":
        return ZeroStageEnum(value["value"])
    if name in _SCALERS:
        scaler = object.__new__(_SCALERS[name])
        vars(scaler).update(_decoded(value["fields"]))
        return scaler
    raise Invalid(f"the checkpoint contains an object of the unknown type {name!r}")
