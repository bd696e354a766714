"""Cairn as a backend of Megatron-Core's distributed checkpointing.

    from megatron.core import dist_checkpointing
    from cairn.trainers.megatron import CairnSaveStrategy      # also registers the load strategy

    dist_checkpointing.save(sharded_state_dict, "run/iter_0000100", CairnSaveStrategy())
    state = dist_checkpointing.load(sharded_state_dict, "run/iter_0000100")

Importing the module registers both strategies as backend "cairn", version 1, so that a load finds
the strategy by the checkpoint's ``metadata.json``.
"""

from __future__ import annotations

import io
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies.base import (
    LoadShardedStrategy,
    SaveShardedStrategy,
    StrategyAction,
    register_default_strategy,
)
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreLoadPlanner,
    _replace_sharded_keys_with_state_dict_keys,
    _replace_state_dict_keys_with_sharded_keys,
    _restore_dict_types,
    _unwrap_pyt_sharded_tensor,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from cairn._base.addresses import absolute_address
from cairn._base.patterns import literal
from cairn.dcp import CairnReader, CairnWriter
from cairn.errors import Invalid, NotFound
from cairn.store import open as open_store
from cairn.trainers._pointers import Pointer, choose_step, read_pointer, write_pointer

BACKEND, VERSION = "cairn", 1
POINTER = "cairn.json"

# An object is saved as {unique key: {kind: data}}.
_PLAIN, _BYTES, _PICKLE = "data", "bytes", "pickle"
_OBJECT = re.compile(
    r"(?P<key>.+?/shard_[0-9]+(?:\.[0-9]+)*_[0-9]+(?:\.[0-9]+)*)\.(?:data|bytes|pickle)(?:\.|$)"
)


class CairnSaveStrategy(SaveShardedStrategy):
    """Saves the sharded part of a checkpoint as a step of a store.

    ``cairn.json`` in the checkpoint directory names the store and the step. The number of the step
    is the number at the end of the directory's name (``iter_0000100``), or the next free one after
    the latest step; the next free one, too, if another directory has that step. A directory that is
    saved again gets the same step, which is replaced atomically.

    Tensors have the keys of their ``ShardedTensor``; of replicas, the main one is saved. The data
    of a ``ShardedObject`` is saved under its unique key, without pickle: tensors, plain values,
    containers of both, and ``BytesIO``.

    Threads: one at a time, on all ranks of the default process group.

    Args:
        store: address of the store; by default ``cairn-store`` in the folder that contains the
            checkpoint directory, so that all iterations share unchanged chunks.
        allow_pickle: pickles ``ShardedObject`` data of other types.
        chunk_bytes: as in :meth:`cairn.Store.save`.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | None = None,
        *,
        allow_pickle: bool = False,
        chunk_bytes: int | None = None,
    ) -> None:
        super().__init__(BACKEND, VERSION)
        self._address = None if store is None else absolute_address(store)
        self._allow_pickle = allow_pickle
        self._chunk_bytes = chunk_bytes

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """Saves on all ranks. Raises DCP's CheckpointException with the error of Cairn as its
        cause."""
        folder = Path(checkpoint_dir).absolute()
        by_key, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, True)
        tensors, objects = _separate(by_key)
        state = mcore_to_pyt_state_dict(tensors)
        for key, found in objects.items():
            state[key] = _encode(key, found[0].data, self._allow_pickle)
        place = _on_first(lambda: self._place_of(folder))
        writer = CairnWriter(
            place.store, step=place.step, overwrite=True, chunk_bytes=self._chunk_bytes
        )
        dcp.save(state, storage_writer=writer, planner=DefaultSavePlanner(flatten_state_dict=False))
        _on_first(lambda: write_pointer(folder / POINTER, place))

    def _place_of(self, folder: Path) -> Pointer:
        address = self._address or absolute_address(folder.parent / "cairn-store")
        try:
            with open_store(address, alone=True) as store:
                return Pointer(address, choose_step(store, folder, POINTER))
        except NotFound:  # there is no store yet
            number = re.search(r"(\d+)$", folder.name)
            return Pointer(address, int(number[1]) if number else 0)


class CairnLoadStrategy(LoadShardedStrategy):
    """Loads the sharded part of a checkpoint from the step that its ``cairn.json`` names, into any
    sharding.

    Threads: one at a time, on all ranks of the default process group.

    Args:
        allow_pickle: unpickles what was saved with ``allow_pickle=True``. This can run any code.
    """

    def __init__(self, *, allow_pickle: bool = False) -> None:
        super().__init__()
        self._allow_pickle = allow_pickle

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def load(
        self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path
    ) -> dict[str, Any]:
        """Fills the tensors of the state, and returns it with the data in place of the shards.

        Raises CheckpointingException or KeyError of Megatron if shapes or keys differ, and DCP's
        CheckpointException with the error of Cairn as its cause.
        """
        given = sharded_state_dict
        by_key, flat_mapping, renamed = _replace_state_dict_keys_with_sharded_keys(given)
        tensors, objects = _separate(by_key)
        state: dict[str, Any] = mcore_to_pyt_state_dict(tensors, True)
        wanted = [one for one in nested_values(given) if isinstance(one, ShardedTensor)]
        planner = MCoreLoadPlanner(
            flatten_state_dict=False,
            shapes_validation_sharded_tensors=[
                one for one in wanted if not one.allow_shape_mismatch
            ],
            allow_shape_mismatch_sharded_tensors={
                one.key: one for one in wanted if one.allow_shape_mismatch
            },
        )
        dcp.load(state, storage_reader=_reader(checkpoint_dir), planner=planner)
        loaded = {key: _unwrap_pyt_sharded_tensor(value) for key, value in state.items()}
        for key, value in self._read_objects(list(objects), checkpoint_dir).items():
            loaded[key] = [value] * len(renamed[key])
        result = _replace_sharded_keys_with_state_dict_keys(loaded, flat_mapping, renamed)
        _restore_dict_types(result, given)
        return result

    def load_tensors_metadata(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """The global shape and dtype of each tensor, by key."""
        return {
            key: ShardedTensor.from_rank_offsets(
                key, torch.empty(described.size, dtype=described.properties.dtype, device="meta")
            ).without_data()
            for key, described in _described(checkpoint_dir).items()
            if isinstance(described, TensorStorageMetadata) and _OBJECT.match(key) is None
        }

    def load_sharded_metadata(self, checkpoint_dir: str | Path) -> dict[str, Any]:
        """The result of :meth:`load_tensors_metadata`, and the objects by unique key."""
        found = dict(self.load_tensors_metadata(checkpoint_dir))
        for key in _described(checkpoint_dir):
            if key not in found:  # an object, or a part of one
                match = _OBJECT.match(key)
                name = key if match is None else match["key"]
                found[name] = ShardedObject.empty_from_unique_key(name)
        return found

    def remove_sharded_tensors(self, checkpoint_dir: str, key_prefix: str) -> None:
        """Not supported: raises Invalid."""
        raise Invalid(
            f"steps do not change: remove {key_prefix}** with kv-admin drop, which makes a new step"
        )

    def check_backend_compatibility(self, loaded_backend: str) -> None:
        if loaded_backend != BACKEND:
            raise CheckpointingException(
                f"the checkpoint has the backend '{loaded_backend}', and this is '{BACKEND}'"
            )

    def check_version_compatibility(self, loaded_version: int) -> None:
        if loaded_version != VERSION:
            raise CheckpointingException(f"version {loaded_version} of the backend is not known")

    def _read_objects(self, keys: list[str], checkpoint_dir: str | Path) -> dict[str, Any]:
        if not keys:
            return {}
        place = read_pointer(Path(checkpoint_dir) / POINTER)
        with open_store(place.store, alone=True) as store:
            found = store.read([literal(key) for key in keys], place.step)
        for key in keys:
            if key not in found:
                raise NotFound(f"step {place.step} has no object '{key}'", key=key, step=place.step)
        return {key: _decode(key, found[key], self._allow_pickle) for key in keys}


def _on_first(work: Callable[[], Any]) -> Any:
    """On all ranks, what `work()` returns or raises on rank 0, which alone calls it."""
    made: list[Any] = [None]
    if dist.get_rank() == 0:
        try:
            made[0] = work()
        except Exception as error:
            made[0] = error
    dist.broadcast_object_list(made, src=0)
    if isinstance(made[0], Exception):
        raise made[0]
    return made[0]


def _reader(checkpoint_dir: str | Path) -> CairnReader:
    place = read_pointer(Path(checkpoint_dir) / POINTER)
    return CairnReader(place.store, place.step)


def _described(checkpoint_dir: str | Path) -> dict[str, Any]:
    return _reader(checkpoint_dir).read_metadata().state_dict_metadata


def _encode(key: str, data: Any, allow_pickle: bool) -> dict[str, Any]:
    """The data of an object as nested plain values. Raises Invalid."""
    if isinstance(data, io.BytesIO):
        return {_BYTES: data.getvalue()}
    if _is_plain(data):
        return {_PLAIN: data}
    if not allow_pickle:
        raise Invalid(
            f"'{key}' is an object of type {type(data).__name__}: save plain values, or pass "
            "allow_pickle=True to CairnSaveStrategy and CairnLoadStrategy",
            key=key,
        )
    stream = io.BytesIO()
    torch.save(data, stream)
    return {_PICKLE: stream.getvalue()}


def _decode(key: str, found: dict[str, Any], allow_pickle: bool) -> Any:
    """The inverse of `_encode`. Raises Invalid."""
    ((kind, data),) = found.items()
    if kind == _BYTES:
        return io.BytesIO(data)
    if kind == _PLAIN:
        return data
    if not allow_pickle:
        raise Invalid(
            f"'{key}' is a pickle: pass allow_pickle=True to CairnLoadStrategy if you trust the "
            "checkpoint, because a pickle can run any code",
            key=key,
        )
    return torch.load(io.BytesIO(data), weights_only=False)


def _is_plain(data: Any) -> bool:
    kind = type(data)
    if kind in (dict, OrderedDict):
        return len(data) > 0 and all(_is_plain(value) for value in data.values())
    if kind in (list, tuple):
        return len(data) > 0 and all(_is_plain(value) for value in data)
    return kind in (type(None), bool, int, float, complex, str, bytes, torch.Tensor)


def _separate(by_key: dict[str, list[Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and objects."""
    tensors = {key: found for key, found in by_key.items() if isinstance(found[0], ShardedTensor)}
    return tensors, {key: found for key, found in by_key.items() if key not in tensors}


register_default_strategy(StrategyAction.SAVE_SHARDED, BACKEND, VERSION, CairnSaveStrategy())
register_default_strategy(StrategyAction.LOAD_SHARDED, BACKEND, VERSION, CairnLoadStrategy())
