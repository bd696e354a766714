"""DCP's ``Metadata`` in Cairn's records, without pickle, and synthesized for other steps.

A step saved by :class:`~cairn.dcp.CairnWriter` contains its metadata as an extension, in JSON:

    {"version": 1,
     "entries": [[FQN, null],                                      # a bytes item
                 [FQN, {"properties": [...], "size": [...], "chunks": [[offsets, sizes], ...]}]],
     "planner_data": ..., "storage_meta": ..., "dcp_version": ...,
     "as_given": [FQN, ...],                        # bytes items stored as the planner gave them
     "bytes_io": [FQN, ...]}                        # bytes that are loaded as io.BytesIO

The data of a default planner are encoded as ``{"paths": {FQN: [key or position, ...]}}``. In other
planner data, tuples are ``{"tuple": [...]}`` and dicts are ``{"dict": [[key, value], ...]}``, so
that decoding returns equal data.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.tree import TENSOR, dcp_items
from cairn._tensors.contents import Leaf, TensorLeaf, ValueLeaf, leaf_at
from cairn._tensors.subclasses import SUBCLASS_KEY, described
from cairn.errors import Corrupt, Invalid

EXTENSION = "torch.distributed.checkpoint"
_VERSION = 1

# Forms of bytes items.
AS_GIVEN = "as given"
BYTES_IO = "io.BytesIO"

_PATH_TYPES = frozenset({str, int})


class StepMetadata(NamedTuple):
    """A step as DCP sees it."""

    metadata: Metadata
    as_given: frozenset[str]
    """FQNs of the bytes items that are stored as the planner gave them."""
    bytes_io: frozenset[str] = frozenset()
    """FQNs of the bytes items that were an io.BytesIO."""


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disables the cyclic garbage collector while millions of objects are created, all of which
    live: it would traverse them repeatedly, which takes several times as long as their creation."""
    with _cairn.CollectionPause():
        yield


# Encoding
# ----------------------------------------------------------------------------------------------


@_no_collection()
def encode(metadata: Metadata, forms: dict[str, str]) -> bytes:
    """The extension. ``forms``: AS_GIVEN or BYTES_IO, for the bytes items that have one. Raises
    Invalid for data of a custom planner that JSON cannot represent."""
    paths, planner_data = paths_of(metadata.planner_data), metadata.planner_data
    document = {
        "version": _VERSION,
        "entries": [
            [fqn, _encode_entry(entry)] for fqn, entry in metadata.state_dict_metadata.items()
        ],
        "planner_data": _encode(planner_data) if paths is None else {"paths": paths},
        "storage_meta": _encode_storage_meta(metadata.storage_meta),
        "dcp_version": metadata.version,
        "as_given": sorted(fqn for fqn, form in forms.items() if form == AS_GIVEN),
    }
    bytes_io = sorted(fqn for fqn, form in forms.items() if form == BYTES_IO)
    if bytes_io:
        document["bytes_io"] = bytes_io
    return json.dumps(document, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _encode_entry(entry: Any) -> dict | None:
    if isinstance(entry, BytesStorageMetadata):
        return None
    return {
        "properties": _encode_properties(entry.properties),
        "size": entry.size,  # JSON encodes a tuple as a list
        "chunks": [(chunk.offsets, chunk.sizes) for chunk in entry.chunks],
    }


def _encode_properties(properties: TensorProperties) -> list:
    texts = (properties.dtype, properties.layout, properties.memory_format)
    flags = (properties.requires_grad, properties.pin_memory)
    return [*(str(text).removeprefix("torch.") for text in texts), *map(bool, flags)]


def _encode_storage_meta(meta: StorageMeta | None) -> dict | None:
    if meta is None:
        return None
    checkpoint_id = None if meta.checkpoint_id is None else str(meta.checkpoint_id)
    return {"checkpoint_id": checkpoint_id, "save_id": meta.save_id, "modules": meta.modules}


def paths_of(planner_data: Any) -> dict[str, tuple[str | int, ...]] | None:
    """The mapping from FQN to path, if the planner data are one, as from default planners."""
    if type(planner_data) is not dict:
        return None
    for fqn, path in planner_data.items():
        if (
            type(fqn) is not str
            or type(path) is not tuple
            or not _PATH_TYPES.issuperset(map(type, path))
        ):
            return None
    return planner_data


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value) is list:
        return [_encode(element) for element in value]
    if isinstance(value, tuple):
        return {"tuple": [_encode(element) for element in value]}
    if isinstance(value, dict):
        return {"dict": [[_encode(k), _encode(v)] for k, v in value.items()]}
    raise Invalid(
        f"the planner's planner_data contains a {type(value).__name__}, which cannot be saved "
        "without pickle: use dicts, lists, tuples and plain values"
    )


# Decoding
# ---------------------------------------------------------------------------------------------


@_no_collection()
def load_metadata(native: _cairn.Store, contents: _cairn.Contents) -> StepMetadata:
    """The metadata as it was saved; synthesized for a step that was not saved through DCP. Raises
    Corrupt if the extension is damaged."""
    data = native.extension(contents.info, EXTENSION)
    if data is None:
        return StepMetadata(_synthesized_metadata(contents), frozenset())
    try:
        document = json.loads(data.decode("utf-8", "surrogatepass"))
        if document["version"] == _VERSION:
            return _decode_document(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"the metadata of step {contents.step} for torch.distributed.checkpoint is damaged "
            f"({error}); Store.read() does not need it",
            step=contents.step,
        ) from error
    raise Invalid(
        f"the metadata of step {contents.step} is of version {document['version']}, newer than "
        "this package: upgrade it",
        step=contents.step,
    )


def _decode_document(document: dict) -> StepMetadata:
    meta = document["storage_meta"]
    if meta is not None:
        meta = StorageMeta(meta["checkpoint_id"], meta["save_id"], modules=meta["modules"])
    metadata = Metadata(
        {fqn: _decode_entry(entry) for fqn, entry in document["entries"]},
        planner_data=_decode(document["planner_data"]),
        storage_meta=meta,
        version=document["dcp_version"],
    )
    as_given, bytes_io = document["as_given"], document.get("bytes_io", ())
    return StepMetadata(metadata, frozenset(as_given), frozenset(bytes_io))


def _decode_entry(entry: dict | None) -> TensorStorageMetadata | BytesStorageMetadata:
    if entry is None:
        return BytesStorageMetadata()
    chunks = [
        ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        for offsets, sizes in entry["chunks"]
    ]
    properties = _decode_properties(*entry["properties"])
    return TensorStorageMetadata(properties, torch.Size(entry["size"]), chunks)


def _decode_properties(
    dtype: str, layout: str, memory_format: str, requires_grad: bool, pin_memory: bool
) -> TensorProperties:
    return TensorProperties(
        dtype=_torch_constant(dtype, torch.dtype),
        layout=_torch_constant(layout, torch.layout),
        requires_grad=requires_grad,
        memory_format=_torch_constant(memory_format, torch.memory_format),
        pin_memory=pin_memory,
    )


def _torch_constant(name: str, kind: type) -> Any:
    constant = getattr(torch, name, None)
    if not isinstance(constant, kind):
        raise ValueError(f"the installed torch has no {kind.__name__} '{name}'")
    return constant


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(element) for element in value]
    if not isinstance(value, dict):
        return value
    if "paths" in value:
        return {fqn: tuple(path) for fqn, path in value["paths"].items()}
    if "tuple" in value:
        return tuple(_decode(element) for element in value["tuple"])
    return {_decode(key): _decode(element) for key, element in value["dict"]}


def shard_key(fqn: str, offsets: Iterable[int]) -> str:
    """The key, ``FQN@0,128``, of a shard that a rank has saved by itself (use_collectives=False).
    The rest of the tensor is not in that store, so the shard is a tensor there."""
    return f"{fqn}@{','.join(map(str, offsets))}"


# Synthesis
# ------------------------------------------------------------------------------------------


class Slot(NamedTuple):
    """A placeholder for a tensor, array or pickle in a nested state."""

    leaf: Leaf

    @property
    def is_tensor(self) -> bool:
        """Whether it is a torch tensor. DCP treats numpy arrays as plain values."""
        return isinstance(self.leaf, TensorLeaf) and self.leaf.kind == TENSOR

    def __index__(self) -> int:
        """Any number: a torch.Size can be built only of numbers."""
        return 0


class SubclassSlot(NamedTuple):
    """A placeholder for a tensor subclass, which consists of inner tensors."""

    items: dict[str, Any]
    """Its description, and a Slot or SubclassSlot for each inner tensor."""
    fqn: str
    description: dict[str, Any]

    @property
    def is_tensor(self) -> bool:
        return True


def nested_values(contents: _cairn.Contents, has_slots: bool = False) -> Any:
    """The nested state of a step: short plain values, unless it `has_slots` for them, a
    SubclassSlot for each tensor subclass, and a Slot for each other leaf."""

    def slot_of(items: dict[str, Any], fqn: str) -> SubclassSlot:
        text = items[SUBCLASS_KEY]
        if isinstance(text, Slot) and isinstance(text.leaf, ValueLeaf):
            text = text.leaf.value
        return SubclassSlot(items, fqn, described(text, fqn, contents.step))

    leaves = (leaf_at(contents, i) for i in range(len(contents)))
    slots = [Slot(leaf) if has_slots or _needs_slot(leaf) else leaf.stored for leaf in leaves]
    return contents.build(slots, slot_of)


def _needs_slot(leaf: Leaf) -> bool:
    is_value = isinstance(leaf, ValueLeaf)
    return not is_value or isinstance(leaf.stored, (_cairn.Pickle, _cairn.LongValue))


def _synthesized_metadata(contents: _cairn.Contents) -> Metadata:
    """The metadata that a default planner would have saved from one process."""
    state = nested_values(contents, has_slots=True)
    if not isinstance(state, dict):
        raise Invalid(f"step {contents.step} is not a dict: torch.distributed.checkpoint needs one")
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for path, value in dcp_items(state, _is_tensor):
        fqn = ".".join(map(str, path))
        stored = value.fqn if isinstance(value, SubclassSlot) else fqn
        if isinstance(value, Slot):
            stored = value.leaf.fqn
        if fqn in entries or stored != fqn:
            raise Invalid(
                f"'{stored}' of step {contents.step} cannot be named in "
                "torch.distributed.checkpoint, which joins keys with '.' and keeps backslashes as "
                "they are: load it with Store.load",
                key=stored,
                step=contents.step,
            )
        entries[fqn] = _entry_of(value)
        paths[fqn] = path
    return Metadata(entries, planner_data=paths)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Slot, SubclassSlot)) and value.is_tensor


def _entry_of(value: Any) -> TensorStorageMetadata | BytesStorageMetadata:
    if isinstance(value, SubclassSlot):
        size = torch.Size(value.description["size"])
        dtype = _torch_constant(value.description["dtype"], torch.dtype)
    elif isinstance(value, Slot) and value.is_tensor:
        size = torch.Size(value.leaf.info.shape)
        dtype = dtypes.torch_dtype(value.leaf.info.dtype)
    else:
        return BytesStorageMetadata()
    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
    properties = TensorProperties(dtype=dtype)
    return TensorStorageMetadata(properties, size, [chunk])
