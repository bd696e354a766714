"""Writes a step as the directory that `dcp.save` of one process writes.

1. The state is divided into items as DCP divides it, with their pickles in memory.
2. The items are written as archives, one after another, to data files with names that are new.
3. The metadata is written, which makes them a checkpoint, and an older one is removed.
"""

from __future__ import annotations

import os
import pickle
import re
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

import torch
from torch.distributed.checkpoint import metadata as words
from torch.distributed.checkpoint.filesystem import _StorageInfo

from cairn import _cairn
from cairn._base.dtypes import torch_dtype
from cairn._base.files import replacing, sync_folder
from cairn._base.tree import dcp_items
from cairn._interop.archives import ArchiveWriter
from cairn._interop.exporting import Source
from cairn._interop.step_pickles import Leaves, Tensor, alone, dump, span
from cairn.errors import Invalid, Unavailable

_MAX_REPEATED_BYTES = 1 << 30
_REPLACED = re.compile(r"(__\d+_\d+\.distcp|__\d+\.metadata)(\.\d+\.tmp)?|\.metadata\.\d+\.tmp")


class _Item(NamedTuple):
    key: str
    path: tuple[Any, ...]
    value: Any


def write_dcp(source: Source, leaves: Leaves, folder: str, max_file_bytes: int) -> list[str]:
    """Returns the paths of the files, the metadata last. Raises Invalid, Unavailable, and what a
    load raises."""
    state = leaves.build()
    if not isinstance(state, dict):
        raise Invalid("the step is not a dict, and torch.distributed.checkpoint saves only dicts")
    items = [
        _Item(".".join(map(str, path)), path, value)
        for path, value in dcp_items(state, lambda value: type(value) is Tensor)
    ]
    _check(items)
    # Each with its pickle, if it is a value, and its storages. Values come first, as in the files
    # of torch.
    parts: list[tuple[_Item, bytes | None, list[_cairn.TensorInfo]]] = [
        (item, *dump(item.value)) for item in items if type(item.value) is not Tensor
    ]
    for item in items:
        if type(item.value) is Tensor:
            parts.append((item._replace(value=alone(item.value)), None, [item.value.info]))
    stream = source.read([info for _, _, infos in parts for info in infos])
    places: dict[Any, Any] = {}
    with _Folder(folder, max_file_bytes) as target:
        for item, pickled, infos in parts:
            file = target.begin_item(sum(info.nbytes for info in infos))
            archive = ArchiveWriter(file, dump(item.value)[0] if pickled is None else pickled)
            for info in infos:
                archive.add_storage(info.nbytes, next(stream))
            index = words.MetadataIndex(item.key)
            if pickled is None:
                index = words.MetadataIndex(item.key, (0,) * len(infos[0].shape), 0)
            places[index] = target.end_item(archive)
        return target.commit(pickle.dumps(_metadata(items, places), protocol=4))


def _check(items: list[_Item]) -> None:
    keys: set[str] = set()
    left = _MAX_REPEATED_BYTES
    for item in items:
        if item.key in keys:
            raise Invalid(
                "two values have this key in torch.distributed.checkpoint, which joins keys with "
                f"'.'; leave one out with a pattern (key {item.key})"
            )
        keys.add(item.key)
        if type(item.value) is Tensor and item.value.info.alias_of and item.value.info.nbytes:
            info = item.value.info
            left -= max(0, info.nbytes - span(info))
            if left < 0:
                raise Invalid(
                    f"it repeats elements of '{info.alias_of}', as expand() does: {info.nbytes} "
                    f"bytes of which {span(info)} are stored; leave it out (key {info.fqn})"
                )


def _metadata(items: list[_Item], places: dict[Any, Any]) -> words.Metadata:
    described: dict[str, Any] = {}
    for item in items:
        described[item.key] = words.BytesStorageMetadata()
        if type(item.value) is Tensor:
            shape = torch.Size(item.value.info.shape)
            chunk = words.ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
            properties = words.TensorProperties(dtype=torch_dtype(item.value.info.dtype))
            described[item.key] = words.TensorStorageMetadata(properties, shape, [chunk])
    paths = {item.key: item.path for item in items}
    metadata = words.Metadata(described, paths, places, words.StorageMeta())
    metadata.version = "1.0.0"
    return metadata


class _Folder:
    """The directory. After an error, it has no new file, and does not exist if it did not.

    Args:
        max_file_bytes: a data file has items with at most this many bytes of tensors, or one item.
    """

    def __init__(self, path: str, max_file_bytes: int) -> None:
        self._path, self._max_file_bytes = os.path.abspath(path), max_file_bytes
        self._created: list[str] = []
        self._is_committed = False
        self._names: list[str] = []
        self._file: BinaryIO | None = None
        self._used = self._begin = 0

    def __enter__(self) -> _Folder:
        missing = [self._path]
        while not os.path.lexists(missing[-1]):
            missing.append(os.path.dirname(missing[-1]))
        for path in reversed(missing[:-1]):
            os.mkdir(path)
            self._created.append(path)
        if not os.path.isdir(self._path):
            raise Invalid(
                f"a torch.distributed.checkpoint is a directory; this is a file (file {self._path})"
            )
        return self

    def begin_item(self, size: int) -> BinaryIO:
        """The file for an item with this many bytes of tensors."""
        if self._file is None or (self._used > 0 and self._used + size > self._max_file_bytes):
            self._file, self._used = self._new_file(), 0
        self._used += size
        self._begin = self._file.tell()
        return self._file

    def end_item(self, archive: ArchiveWriter) -> _StorageInfo:
        """The place of the item that is complete now."""
        return _StorageInfo(self._names[-1], self._begin, archive.finish())

    def _new_file(self) -> BinaryIO:
        # Never one that exists: the old metadata needs its files until the end.
        self._finish()
        number = 0
        while os.path.lexists(os.path.join(self._path, f"__0_{number}.distcp")):
            number += 1
        self._names.append(f"__0_{number}.distcp")
        return open(os.path.join(self._path, self._names[-1]), "xb")

    def commit(self, metadata: bytes) -> list[str]:
        """Writes the metadata, and removes the files of an older checkpoint. Returns all paths."""
        self._finish()
        for path in self._created:
            sync_folder(os.path.dirname(path))
        sync_folder(self._path)
        paths = [os.path.join(self._path, name) for name in (*self._names, ".metadata")]
        with replacing(paths[-1], self._mark_committed) as file:
            file.write(metadata)
        for name in os.listdir(self._path):
            if _REPLACED.fullmatch(name) and name not in self._names:
                with suppress(OSError):  # it takes space, but the checkpoint is complete
                    os.unlink(os.path.join(self._path, name))
        return paths

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        if not self._is_committed:
            for name in self._names:
                with suppress(OSError):
                    os.unlink(os.path.join(self._path, name))
            for path in reversed(self._created):
                with suppress(OSError):
                    os.rmdir(path)
        if isinstance(error, OSError):
            path = error.filename or self._path
            raise Unavailable(f"cannot write the file: {error.strerror} (file {path})") from None

    def _mark_committed(self) -> None:
        self._is_committed = True

    def _finish(self) -> None:
        """Completes the file that was opened last."""
        if self._file is not None:
            with self._file as file:
                file.flush()
                os.fsync(file.fileno())
            self._file = None
