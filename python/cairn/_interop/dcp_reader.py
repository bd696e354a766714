"""Reads directories of torch.distributed.checkpoint (DCP) in one process.

The metadata is a pickle, of which only the names below have a meaning. Tensors are parts of the
mapped files, also if they consist of the chunks of many ranks.
"""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import torch

from cairn._base import dtypes
from cairn._interop.archives import Archive, MappedFile
from cairn._interop.pickles import Object, Reader, find_dtype, is_shape
from cairn._interop.states import LEFT_OUT, Checker, located
from cairn._load.converted_load import raw_array
from cairn._tensors.sources import Box, BoxedTensor
from cairn.errors import Corrupt, Invalid

_METADATA = "torch.distributed.checkpoint.metadata."
_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
_OLD = "torch.distributed._shard.sharded_tensor.metadata."  # of torch before 2.3
_CLASSES = (
    *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "TensorProperties"),
    *("BytesStorageMetadata", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING"),
)
_ALLOWED = {
    *(_METADATA + name for name in _CLASSES),
    *(_OLD + name for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    *(_INFO, "torch.Size", "torch.serialization._get_layout", "collections.OrderedDict"),
    *(
        f"pathlib{local}.{kind}Path"
        for local in ("", "._local")  # of Python 3.13
        for kind in ("Posix", "PurePosix", "Windows", "PureWindows")
    ),
}
_MAX_DEPTH = 1000


class _Chunk(NamedTuple):
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def find_metadata(path: str) -> str:
    """The metadata of a directory, or `path` itself. Raises Invalid."""
    metadata = os.path.join(path, ".metadata")
    if not os.path.isdir(path):
        return path
    if not os.path.isfile(metadata) and os.path.isfile(os.path.join(path, "__0.metadata")):
        raise Invalid(
            "every rank saved its own checkpoint here (use_collectives=False); give the "
            "__R.metadata of one rank",
            file=path,
        )
    return metadata


class DcpReader:
    """Reads one checkpoint. `files` and `archives` are complete after `read`."""

    def __init__(self, path: str, checker: Checker) -> None:
        self._path = find_metadata(path)
        self._checker = checker
        self.files: dict[str, MappedFile] = {}
        self._unclaimed: dict[str, int] = {}
        self.archives: list[Archive] = []

    def read(self) -> Any:
        """The nested state that was passed to `dcp.save`. Raises Corrupt, Invalid or NotFound."""
        with located(file=self._path):
            data = MappedFile(self._path)
            reader = Reader(
                data.bytes(0, data.size),
                allowed=lambda name: name in _ALLOWED or find_dtype(name) is not None,
            )
            fields = _object(reader.load()).fields(_METADATA + "Metadata")
            self._checker.count(reader)
            self._places = self._read_places(_dict(fields, "storage_data"))
            paths = fields.get("planner_data")
            tree = _Node()
            for key, item in _dict(fields, "state_dict_metadata").items():
                with located(key=key):
                    path = paths.get(key, ()) if type(paths) is dict else ()
                    _insert(tree, path or (key,), self._read_item(key, _object(item)))
            return _containers(tree)

    # ---- metadata

    def _read_places(self, data: dict[Any, Any]) -> dict[tuple[str, Any], dict[str, Any]]:
        places = {}
        for index, info in data.items():
            key = _object(index).fields(_METADATA + "MetadataIndex")
            offset = key.get("offset")
            if type(key.get("fqn")) is not str or not (offset is None or is_shape(offset)):
                raise Corrupt("a place in the metadata without a name")
            with located(key=key["fqn"]):
                place = _object(info).fields(_INFO)
                name = place.get("relative_path")
                if type(name) is not str or name in ("", ".", "..") or set("/\0") & set(name):
                    raise Corrupt(f"{name!r} is not the name of a file in its directory")
                if not is_shape((place.get("offset"), place.get("length"))):
                    raise Corrupt("an item without a position and a length")
                for extension in place.get("transform_descriptors") or ():
                    raise Invalid(
                        f"its bytes were transformed by the extension {extension!r}; only "
                        "checkpoints without extensions can be read"
                    )
            places[key["fqn"], None if offset is None else tuple(offset)] = place
        return places

    def _find(self, key: str, offsets: tuple[int, ...] | None) -> tuple[MappedFile, int, int]:
        place = self._places.get((key, offsets))
        if place is None:
            raise Corrupt(f"the metadata has no place for its chunk at {offsets}")
        name, begin, size = place["relative_path"], place["offset"], place["length"]
        if name not in self.files:
            file = MappedFile(os.path.join(os.path.dirname(self._path), name))
            self.files[name], self._unclaimed[name] = file, file.size
        file = self.files[name]
        # Items do not share bytes. This bounds the state that one small item can become.
        self._unclaimed[name] -= size
        if begin + size > file.size or self._unclaimed[name] < 0:
            raise Corrupt(
                f"an item of {size} bytes is not within the file; was it cut off?",
                file=file.path, offset=begin,
            )  # fmt: skip
        return file, begin, size

    # ---- items

    def _read_item(self, key: str, item: Object) -> Any:
        if item.name == _METADATA + "BytesStorageMetadata":
            file, begin, size = self._find(key, None)
            with located(file=file.path, offset=begin):
                return self._checker.check(self._load(file, begin, size), key)
        fields = item.fields(_METADATA + "TensorStorageMetadata")
        properties = _object(fields.get("properties")).state
        dtype = find_dtype(properties[0]) if type(properties) is tuple and properties else None
        shape = fields.get("size")
        if dtype is None or not is_shape(shape) or type(fields.get("chunks")) is not list:
            raise Corrupt("a tensor without dtype, shape or chunks")
        chunks = [_chunk(_object(chunk), shape) for chunk in fields["chunks"]]
        held, count = sum(math.prod(chunk.sizes) for chunk in chunks), math.prod(shape)
        if held != count:
            raise Corrupt(
                f"its chunks hold {held} elements, but its shape {list(shape)} has {count}"
            )
        parts = [self._read_chunk(key, chunk, dtype) for chunk in chunks]
        if any(part is LEFT_OUT for part in parts):
            return LEFT_OUT
        if len(parts) == 1 and chunks[0].sizes == tuple(shape):
            return parts[0]
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        boxes = [
            Box(chunk.offsets, raw_array(part)) for chunk, part in zip(chunks, parts, strict=True)
        ]
        code = dtypes.code_of_torch(dtype)
        assert code is not None  # find_dtype knows only these
        return BoxedTensor(code, tuple(shape), boxes)

    def _read_chunk(self, key: str, chunk: _Chunk, dtype: torch.dtype) -> Any:
        file, begin, size = self._find(key, chunk.offsets)
        with located(file=file.path, offset=begin):
            part = self._checker.check(self._load(file, begin, size), key)
            if part is LEFT_OUT:
                return part
            if not isinstance(part, torch.Tensor):
                raise Corrupt("the item of a tensor contains something else")
            if part.dtype != dtype or tuple(part.shape) != chunk.sizes:
                raise Corrupt(
                    f"the metadata states {dtype} {list(chunk.sizes)}, but the item is "
                    f"{part.dtype} {list(part.shape)}"
                )
            return part

    def _load(self, file: MappedFile, begin: int, size: int) -> Any:
        archive = Archive(file, begin, size)
        value, reader = archive.read()
        self._checker.count(reader)
        self.archives.append(archive)
        return value


class _Node(dict):  # type: ignore[type-arg]
    """A container that is divided into items, by the elements of their paths."""


def _insert(tree: _Node, path: tuple[Any, ...], value: Any) -> None:
    if len(path) > _MAX_DEPTH or not all(type(x) is str or is_shape((x,)) for x in path):
        raise Corrupt("its path has too many elements, or other elements than texts and counts")
    if value is LEFT_OUT:
        return
    for element in path[:-1]:
        tree = tree.setdefault(element, _Node())
        if type(tree) is not _Node:
            break
    if type(tree) is not _Node or path[-1] in tree:
        raise Corrupt("the metadata has two items with the same path, or one inside another")
    tree[path[-1]] = value


def _containers(tree: Any, is_root: bool = True) -> Any:
    """Lists have all numbers from 0 on as the elements of paths; everything else is a dict."""
    if type(tree) is not _Node:
        return tree
    kept = {key: _containers(child, False) for key, child in tree.items()}
    indices = range(len(kept))
    if is_root or any(type(key) is not int or key not in indices for key in kept):
        return kept
    return [kept[i] for i in indices]


def _object(value: Any) -> Object:
    if type(value) is not Object:
        raise Corrupt("the metadata is not that of torch.distributed.checkpoint")
    return value


def _dict(fields: dict[str, Any], name: str) -> dict[Any, Any]:
    if type(fields.get(name)) is not dict:
        raise Corrupt(f"the metadata has no {name}")
    return fields[name]


def _chunk(item: Object, shape: tuple[int, ...]) -> _Chunk:
    fields = item.fields(_METADATA + "ChunkStorageMetadata")
    offsets, sizes = fields.get("offsets"), fields.get("sizes")
    if not is_shape(offsets) or not is_shape(sizes) or not len(offsets) == len(sizes) == len(shape):
        raise Corrupt("a chunk without offsets and sizes")
    if any(a + b > c for a, b, c in zip(offsets, sizes, shape, strict=True)):
        raise Corrupt("a chunk extends beyond its tensor")
    return _Chunk(tuple(offsets), tuple(sizes))
