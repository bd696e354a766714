"""torch_checkpointing: torch.save of complete items in threads, or in a separate process."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any

from compare_lib.page_cache import files_of
from compare_lib.peers.base import (
    EVERYTHING_STAGED,
    NO_INCREMENT,
    NOT_OF_DCP,
    THREADS,
    Finish,
    Peer,
    Steps,
    sync_path,
    time_import,
)
from compare_lib.states import State, Tensors


def _items(tensors: Tensors) -> dict[str, Tensors]:
    """Distributes the tensors over as many items as there are threads: an item is a file."""
    parts = (list(tensors.items())[i::THREADS] for i in range(THREADS))
    return {f"part{i}": dict(part) for i, part in enumerate(parts) if part}


def _flat(items: Any) -> Tensors:
    return {key: tensor for part in items.values() for key, tensor in part.items()}


class TorchCheckpointingPeer(Peer):
    name = "torch_checkpointing"
    modules = ("torch_checkpointing",)
    package = "torch_checkpointing"
    cannot = {
        "load_slices": "reads boxes only for tensors that are sharded over a mesh of ranks",
        "second_save": NO_INCREMENT,
        "save_async_stated": EVERYTHING_STAGED,
        "small_saves": "is not compared with a small state",
        "dcp_saves_and_loads": NOT_OF_DCP,
        "open_metadata": "stores complete items, not chunks",
    }
    cannot_partly = {"stall_1": EVERYTHING_STAGED}
    remarks = (
        f"synchronous saves with file_write_max_threads={THREADS} and as many items, then fsync of "
        "files and directories, which it omits; use_direct_io=False, because "
        "its direct writes are not aligned and ext4 refuses them; loads with use_mmap; "
        "asynchronous saves staged in shared memory by its thread: the stall ends when "
        "manager.lock() is free",
    )

    def _manager(self, is_async: bool) -> Any:
        import torch_checkpointing as tc
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        writer = tc.CheckpointWriterConfig(file_write_max_threads=THREADS)
        if is_async:
            staging = tc.CheckpointStagerConfig(
                use_pinned_memory=False, use_non_blocking_copy=False
            )
            saver = tc.AsyncCheckpointSaverConfig(writer_config=writer, staging_config=staging)
        else:
            saver = tc.SyncCheckpointSaverConfig(writer_config=writer)
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        return tc.CheckpointManager.Config(save=saver, storage_config=storage).build()

    def import_package(self) -> Steps:
        yield from time_import("torch_checkpointing")

    def save(self, state: State) -> Steps:
        manager = self._manager(is_async=False)
        yield
        manager.save(str(self.directory / "state"), _items(state.tensors))
        for file in files_of(self.directory / "state"):
            sync_path(file)
        sync_path(self.directory / "state")
        sync_path(self.directory)
        yield None

    def load_new(self, state: State) -> Steps:
        manager = self._manager(is_async=False)
        yield
        into = dict.fromkeys(_items(state.tensors))
        yield _flat(manager.load(str(self.directory / "state"), into))

    def load_existing(self, state: State, targets: Tensors) -> Steps:
        manager = self._manager(is_async=False)
        yield
        yield _flat(manager.load(str(self.directory / "state"), _items(targets)))

    def load_keys(self, state: State, keys: list[str]) -> Steps:
        import torch

        manager = self._manager(is_async=False)
        items = _items(state.tensors)
        yield
        into = {
            name: {key: torch.empty_like(part[key]) for key in keys if key in part}
            for name, part in items.items()
        }
        into = {name: part for name, part in into.items() if part}
        yield _flat(manager.load(str(self.directory / "state"), into))

    def save_async(self, state: State, keys: list[str]) -> Callable[[], Finish]:
        manager = self._manager(is_async=True)
        numbers = itertools.count(1)

        def stall() -> Finish:
            path = self.scratch / str(next(numbers))
            future = manager.save(str(path), _items(state.tensors))
            with manager.lock():
                pass

            def finish() -> None:
                future.result()
                shutil.rmtree(path)

            return finish

        return stall
