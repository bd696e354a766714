"""State dicts between "a shard on each rank" and "whole": gather, broadcast, distribute.

Bytes move over Cairn's own communicator, one for each process group, connected at the first call.
Every rank of the group makes each call. What is wrong on one rank is raised on all, before anything
has been written, and every wait has a deadline. A rank that dies, is interrupted (Ctrl-C) or is too
late ends the connections, and with them the call on all ranks; their next call makes new ones.
"""

from __future__ import annotations

import contextlib
import pickle
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cairn import _cairn, dtypes
from cairn.devices import HOST
from cairn.errors import refuse
from cairn.ranks import Ranks, default_group, ranks_of, this_process
from cairn.sharded import MeshShard, Shards, dtensor_like, is_dtensor, is_sharded
from cairn.state_dict_walk import rebuild
from cairn.tensors import Source, Sources, dtype_code, row_major
from cairn.tree import TENSOR

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

TIMEOUT = 1800.0
"""Seconds that ranks wait for each other in one call."""

_ranks_of_group: weakref.WeakKeyDictionary[Any, Ranks] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def _ranks(pg: ProcessGroup | None) -> Iterator[Ranks]:
    group = default_group() if pg is None else pg
    if group is None:
        yield this_process(TIMEOUT)
        return
    if group not in _ranks_of_group:
        _ranks_of_group[group] = ranks_of(group, TIMEOUT)
    ranks = _ranks_of_group[group]
    try:
        yield ranks
    except BaseException as error:
        # Connections are used again only after what every rank has agreed on. Else this rank ends
        # them, so that the others, who wait for it at the end of the call at the latest, do the
        # same: the next call makes new ones, on all ranks.
        if not ranks.has_agreed_on(error):
            _ranks_of_group.pop(group, None)
            ranks.leave()
        raise


class _Leaf(NamedTuple):
    """A leaf for `_cairn.flatten`, described already."""

    source: Source


def _batch(leaves: dict[str, Any]) -> _cairn.Batch:
    """Of `_Leaf`s, and of None where a leaf is to be told what it is."""
    return _cairn.flatten(leaves, lambda leaf, fqn: leaf.source, [])


def _tensor(moved: tuple[str, int, tuple[int, ...], torch.Tensor | None]) -> torch.Tensor:
    _, code, shape, data = moved
    dtype = dtypes.torch_dtype(code)
    return torch.empty(shape, dtype=dtype) if data is None else data.view(dtype).view(shape)


def gather_state_dict(
    state_dict: dict[str, Any],
    *,
    pg: ProcessGroup | None = None,
    device: torch.device | None = None,
    cpu_offload: bool = False,
    ranks_only: tuple[int, ...] = (),
    type_check: bool = True,
) -> dict[str, Any]:
    """The state with every DTensor and ShardedTensor whole, a plain tensor. Collective over ``pg``.

    Plain tensors and values are this rank's own, the same objects. The tensors put together lie in
    one region of host memory, which lives as long as one of them: ``clone()`` what outlives the
    rest. Each byte goes once to every rank that gets the state.

    Args:
        pg: the process group, of which every rank calls this; by default the default one.
        device: where ShardedTensors go; by default to that of their shards. DTensors go to their
            mesh's.
        cpu_offload: leaves all tensors in, or brings them to, host memory.
        ranks_only: ranks of ``pg`` that get the state; others get an empty dict. None named: all.
        type_check: ``False`` deep-copies what is neither a tensor nor a plain value.

    Counterpart of torch's ``_gather_state_dict``. Unlike there every rank of ``pg`` calls it, also
    where a DTensor's mesh is smaller (torch: those of the mesh); ShardedTensors may be cut in any
    way (torch: along dimension 0, one shard a rank); partial sums are refused, not added up; and
    results never share memory with the state.

    Raises:
        Invalid: a shard does not fit its mesh, ranks say different things of one key, a mesh with
            ranks that are not of ``pg``; a value of another type, with ``type_check`` (torch:
            ValueError).
        Unavailable: a rank died or did not come in time.
    """
    with _ranks(pg) as ranks:
        gathering = ranks.settle(lambda: _Gathering(ranks, state_dict, type_check))
        communicator = ranks.communicator or _cairn.Communicator.alone()
        moved = _cairn.gather_shards(communicator, gathering.batch, ranks_only)
        is_wanted = not ranks_only or ranks.rank in ranks_only
        whole = ranks.settle(
            lambda: gathering.whole(moved, device, cpu_offload) if is_wanted else {}
        )
    if not is_wanted:
        return {}

    def result(value: Any, fqn: str) -> Any:
        if is_sharded(value):
            return whole[id(value)]
        return value.to("cpu") if cpu_offload else value

    return rebuild(state_dict, result, type_check=False)


class _Gathering:
    """The shards of one rank on their way to all.

    Attributes:
        batch: what is here of each sharded tensor.
    """

    def __init__(self, ranks: Ranks, state_dict: Any, type_check: bool) -> None:
        """Raises Invalid."""
        self._shards = Shards(ranks)
        self._sources = Sources(self._shards)
        self._values: dict[str, Any] = {}
        leaves: dict[str, _Leaf] = {}

        def tensor(value: Any, fqn: str) -> None:
            if is_sharded(value):
                name, source = self._describe(value, fqn)
                self._values[name], leaves[name] = value, _Leaf(source)

        rebuild(state_dict, tensor, type_check)
        self.batch = _batch(leaves)

    def _describe(self, value: Any, fqn: str) -> tuple[str, Source]:
        """The shard that is here, under a name that tells copies on different meshes apart."""
        shard = self._shards.of(value, fqn)
        if isinstance(shard, MeshShard):
            members = value.device_mesh.mesh.flatten().tolist()
        else:
            members = self._shards.groups[fqn]
        return f"{min(members)}:{fqn}", self._sources.sharded(shard, value, fqn)

    def whole(self, moved: list[tuple], device: Any, cpu_offload: bool) -> dict[int, torch.Tensor]:
        """What has arrived, where it belongs, by the id of the sharded tensor."""
        return {
            id(self._values[one[0]]): _placed(
                _tensor(one), self._values[one[0]], device, cpu_offload
            )
            for one in moved
        }


def _placed(whole: torch.Tensor, like: Any, device: Any, cpu_offload: bool) -> torch.Tensor:
    if cpu_offload:
        return whole
    if is_dtensor(like):
        return whole.to(like.device_mesh.device_type)
    shards = like.local_shards()
    there = shards[0].tensor.device if shards else torch.device("cpu")
    return whole.to(there if device is None else device)


class _Announced(NamedTuple):
    """What rank 0 tells of one key of its full state."""

    value: Any
    """Of plain values and scalars; None for a tensor."""
    dtype: torch.dtype | None = None


def broadcast_state_dict(
    full_state_dict: dict[str, Any],
    local_state_dict: dict[str, Any],
    device: torch.device,
    pg: ProcessGroup | None = None,
    strict: bool = False,
    cpu_offload: bool = False,
) -> None:
    """Rank 0's full state into every rank's local one, which is changed. Collective over ``pg``.

    Both are flat: dicts from names to leaves. Names that ``local_state_dict`` lacks, or has as
    ``None``, are passed over. DTensors and ShardedTensors get their part in place, converted to
    their dtype; meta DTensors are replaced by new ones on ``device``, plain tensors by new ones on
    ``device``; scalars and other values by rank 0's.

    Args:
        full_state_dict: whole tensors and values; looked at on rank 0 of ``pg`` only.
        device: of new tensors.
        strict: removes names from ``local_state_dict`` that the full state lacks.
        cpu_offload: leaves in, or brings to, host memory what was received.

    Tensors move in bounded memory beside the result. Values that are no tensors go pickled from
    rank 0 to the other ranks of the job, as torch sends them; nothing is stored.

    Counterpart of torch's ``_broadcast_state_dict``. Unlike there rank 0 is that of ``pg``, what it
    gets shares no memory with its full state, ShardedTensors stay sharded, and ``cpu_offload`` does
    not ask for names that ``local_state_dict`` lacks.

    Raises:
        Invalid: global shapes differ, or a value where a sharded tensor is; on all ranks.
        Unavailable: a rank died or did not come in time.
    """
    with _ranks(pg) as ranks:
        announced = _announce(ranks, full_state_dict)
        tensors = {
            str(i): key for i, (key, one) in enumerate(announced.items()) if one.dtype is not None
        }
        is_root = ranks.rank == 0
        prepared = ranks.settle(
            lambda: _Transfer(
                ranks, full_state_dict if is_root else {}, local_state_dict, tensors, announced
            )
        )
        communicator = ranks.communicator or _cairn.Communicator.alone()
        moved = _cairn.broadcast_to_shards(communicator, prepared.full, prepared.target)
        ranks.settle(lambda: prepared.put(moved, local_state_dict, device))
    for key, one in announced.items():
        if one.dtype is None and key in local_state_dict:
            local_state_dict[key] = one.value
    _finish(local_state_dict, announced, strict, cpu_offload)


def _announce(ranks: Ranks, full_state_dict: dict[str, Any]) -> dict[str, _Announced]:
    def tell() -> bytes:
        if ranks.rank > 0:
            return b""
        return pickle.dumps({key: _announced(value) for key, value in full_state_dict.items()})

    return pickle.loads(ranks.exchange(tell)[0])


def _announced(value: Any) -> _Announced:
    if not torch.is_tensor(value):
        return _Announced(value)
    return _Announced(value.detach().cpu()) if value.dim() == 0 else _Announced(None, value.dtype)


def _finish(
    local: dict[str, Any], announced: dict[str, _Announced], strict: bool, cpu_offload: bool
) -> None:
    if strict:
        for key in [key for key in local if key not in announced]:
            del local[key]
    if cpu_offload:
        for key, one in announced.items():
            if one.dtype is not None and local.get(key) is not None:
                local[key] = local[key].cpu()


class _Transfer:
    """Whole tensors on their way into the shards of this rank."""

    def __init__(
        self,
        ranks: Ranks,
        full: dict[str, Any],
        local: dict[str, Any],
        tensors: dict[str, str],
        announced: dict[str, _Announced],
    ) -> None:
        """``tensors``: the names to move, by the text that stands for each. Raises Invalid."""
        self._keys = {name: key for name, key in tensors.items() if local.get(key) is not None}
        shards = Shards(ranks)
        sources = Sources(shards)
        self.full = _batch(
            {
                name: _Leaf(_whole(full[key], key, sources))
                for name, key in tensors.items()
                if key in full
            }
        )
        self.target = _batch(
            {
                name: self._slot(local[key], key, shards, announced[key].dtype)
                for name, key in self._keys.items()
            }
        )

    def _slot(self, value: Any, key: str, shards: Shards, dtype: Any) -> _Leaf | None:
        """Where the bytes go, in the dtype that they have."""
        if not is_sharded(value):
            return None
        code = dtype_code(dtype, key)
        shard = shards.of(value, key)
        if not isinstance(shard, MeshShard):
            return _Leaf(self._boxes(shard, value, key, dtype))
        local = shard.local
        shape = tuple(local.shape)
        is_direct = local.device.type == "cpu" and local.dtype == dtype and not local.is_conj()
        if not shard.is_here or not is_direct or local.is_neg():
            return _Leaf(Source(TENSOR, code, shape, row_major(shape), 0, HOST, local, shard.native()))
        place = tuple(local.stride()), local.data_ptr(), HOST
        return _Leaf(Source(TENSOR, code, shape, *place, local, shard.native()))

    def _boxes(self, shard: Any, value: Any, key: str, dtype: Any) -> Source:
        parts = []
        for offsets, sizes, memory in shard.boxes:
            if memory.device.type != "cpu" or memory.dtype != dtype or memory.is_conj():
                raise refuse(
                    key,
                    f"a ShardedTensor of {memory.dtype} on {memory.device} that is to get {dtype}",
                    "give it that dtype in host memory, or use DTensor",
                )
            parts.append((offsets, sizes, tuple(memory.stride()), memory.data_ptr(), HOST))
        sharding = (shard.global_shape, None, parts)
        return Source(TENSOR, dtype_code(dtype, key), (0,), (1,), 0, HOST, shard, sharding)

    def put(self, moved: list[tuple], local: dict[str, Any], device: Any) -> None:
        """What arrived in new memory, to where it belongs."""
        for one in moved:
            key = self._keys[one[0]]
            value, tensor = local[key], _tensor(one)
            if not is_dtensor(value):
                local[key] = tensor.to(device)
            elif value.is_meta:
                local[key] = dtensor_like(value, tensor.to(device))
            else:
                with torch.no_grad():
                    value._local_tensor.copy_(tensor)


def _whole(value: Any, key: str, sources: Sources) -> Source:
    if is_sharded(value):
        raise refuse(key, "sharded in the full state", "gather it first (full_tensor())")
    return sources.take(value, key)


def distribute_state_dict(
    full_state_dict: dict[str, Any],
    local_state_dict: dict[str, Any],
    device: torch.device,
    pg: ProcessGroup | None = None,
) -> None:
    """This rank's part of a full state that every rank has, into its local one, which is changed.

    Both are flat: dicts from names to leaves. DTensors are replaced by new ones of the same mesh
    and placements on ``device``, plain tensors by those of the full state on ``device`` (the same
    memory if they are there already); names that ``local_state_dict`` lacks, or has as ``None``,
    are passed over. Scalars and other values are taken over, also where there was none.

    Args:
        pg: not used, as nothing is sent.

    Counterpart of torch's ``_distribute_state_dict``. Unlike there each rank cuts its own full
    state (torch: rank 0's is sent), ShardedTensors are filled in place, and every rank may call it
    by itself.

    Raises:
        Invalid: global shapes differ.
    """
    ranks = this_process(TIMEOUT)
    local = {
        key: value
        for key, value in local_state_dict.items()
        if is_sharded(value) and _is_array(full_state_dict.get(key))
    }
    announced = {key: _announced(full_state_dict[key]) for key in local}
    # DTensors get new memory, in the full state's dtype.
    slots = {
        key: dtensor_like(value, value._local_tensor.to("meta")) if is_dtensor(value) else value
        for key, value in local.items()
    }
    names = {str(i): key for i, key in enumerate(local)}
    transfer = _Transfer(ranks, full_state_dict, slots, names, announced)
    moved = _cairn.distribute_to_shards(transfer.full, transfer.target, ranks.rank)
    transfer.put(moved, slots, device)
    for key, value in full_state_dict.items():
        if not torch.is_tensor(value):
            local_state_dict[key] = value
        elif value.dim() == 0:
            local_state_dict[key] = value.cpu()
        elif key in local:
            local_state_dict[key] = slots[key]
        elif local_state_dict.get(key) is not None:
            local_state_dict[key] = value.detach().to(device)


def _is_array(value: Any) -> bool:
    return torch.is_tensor(value) and value.dim() > 0
