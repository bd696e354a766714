"""The storages under test with ``torch.distributed.checkpoint``: torch's files and Cairn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import cairn
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter


class Storage(NamedTuple):
    """A writer class and a reader class with a common contract; can be pickled."""

    name: str
    writer_type: Callable[..., StorageWriter]
    reader_type: Callable[..., StorageReader]

    def writer(self, path: Any, **options: Any) -> StorageWriter:
        return self.writer_type(path, **self._known(self.writer_type, options))

    def reader(self, path: Any, **options: Any) -> StorageReader:
        return self.reader_type(path, **self._known(self.reader_type, options))

    def save(self, state: dict, path: Any, **arguments: Any) -> Any:
        """dcp.save with a new writer."""
        return dcp.save(state, storage_writer=self.writer(path), **arguments)

    def load(self, state: dict, path: Any, **arguments: Any) -> dict:
        """dcp.load with a new reader. Returns `state`."""
        dcp.load(state, storage_reader=self.reader(path), **arguments)
        return state

    def _known(self, function: Callable[..., Any], options: dict) -> dict:
        """Removes allow_pickle for storages that always use pickle."""
        if "allow_pickle" in inspect.signature(function).parameters:
            return options
        return {name: value for name, value in options.items() if name != "allow_pickle"}


class Native(NamedTuple):
    """The calls of a store, without dcp."""

    name: str
    read_once: bool

    def save(self, state: dict, path: Any) -> None:
        with cairn.open(path, mode="a") as store:
            store.save(1, state)

    def load(self, state: dict, path: Any) -> dict:
        with cairn.open(path) as store:
            store.load(state, read_once=self.read_once)
        return state


FILES = Storage("files", FileSystemWriter, FileSystemReader)
CAIRN = Storage("cairn", CairnWriter, CairnReader)
STORAGES = [FILES, CAIRN]
NATIVE = [Native("native", False), Native("native, read once", True)]


def loaded(*args: Any, **options: Any) -> dict:
    """The complete state of a step of Cairn, loaded by dcp."""
    return _load_state_dict_from_keys(storage_reader=CairnReader(*args, **options))


def failing(default: type, method: str, rank: int | None = None) -> Any:
    """A subclass whose `method` raises a KeyError, on all ranks or on this one."""
    if rank not in (None, dist.get_rank() if dist.is_initialized() else 0):
        return default

    def fail(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise KeyError(method)

    return type(f"Failing{default.__name__}", (default,), {method: fail})


def failures_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[int, str]:
    """The type name of each rank's error. The call must fail with a CheckpointException."""
    return {
        rank: type(error).__name__ for rank, error in errors_of(function, *args, **kwargs).items()
    }


def errors_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> dict[int, BaseException]:
    """The error of each rank. The call must fail with a CheckpointException."""
    try:
        function(*args, **kwargs)
    except CheckpointException as error:
        return {rank: wrapped[0] for rank, wrapped in error.failures.items()}
    raise AssertionError("no CheckpointException")
