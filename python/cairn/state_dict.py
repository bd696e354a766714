"""State-dict tools: supported versions of private collectives of torch.distributed: gather,
broadcast and distribute.

    from cairn.state_dict import gather_state_dict

    whole = gather_state_dict(model.state_dict(), cpu_offload=True, ranks_only=(0,))

Each function has the name, arguments and results of its counterpart in
``torch.distributed._state_dict_utils``, which has a leading underscore; the docstrings describe the
differences. Errors are :class:`cairn.Invalid` where torch raises ``ValueError`` or
``AssertionError``.

Bytes are sent over Cairn's own communicator, in bounded memory: one per process group, connected at
the first call. Tensors on CUDA devices are sent from and received into device memory, over NCCL if
all ranks have it (see ``transport``), otherwise through bounded host memory. This happens after the
work that is on the current streams of their devices at the call, and is complete when the call
returns. If any rank has such a tensor, all tensors of the call are sent this way.

Every rank of the group makes each call. An error on one rank is raised on all ranks before anything
is written, and every wait has a deadline. If a rank dies, is interrupted (Ctrl-C) or exceeds the
deadline, the connections are closed and the call fails on all ranks; the next call reconnects.
"""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cairn import _cairn
from cairn._base import devices
from cairn._base.devices import HOST, device_of
from cairn._base.tree import TENSOR
from cairn._ranks.ranks import Ranks, default_group, ranks_of, this_process
from cairn._ranks.sharded import (
    MeshShard,
    Shards,
    dtensor_like,
    global_shape_of,
    is_checkpointable,
    is_dtensor,
    is_sharded,
)
from cairn._tensors.sources import Source, Sources, dtype_code, is_torch_tensor, row_major
from cairn._tensors.targets import new_tensor
from cairn.errors import refuse

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["broadcast_state_dict", "distribute_state_dict", "gather_state_dict", "transport"]

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
        # Connections are reused only after an error that every rank has. Otherwise this rank closes
        # them, so that the others, which wait for it at the end of the call at the latest, fail and
        # do the same: the next call reconnects on all ranks.
        if not ranks.has_agreed_on(error):
            _ranks_of_group.pop(group, None)
            ranks.leave(error)
        raise


def transport(pg: ProcessGroup | None = None) -> str:
    """How the calls of a process group (by default the default group) send tensors on devices, and
    why: over NCCL, from device to device, or through host memory. The first call with such a tensor
    makes the choice. The environment variable ``CAIRN_NCCL`` overrides it
    (docs/communicators.md)."""
    group = default_group() if pg is None else pg
    if group is None:
        return this_process(TIMEOUT).transport
    ranks = _ranks_of_group.get(group)
    return "none yet: no call was made" if ranks is None else ranks.transport


class _Leaf(NamedTuple):
    """A leaf for `_cairn.flatten` that already has a source."""

    source: Source


def _batch(leaves: dict[str, Any]) -> _cairn.Batch:
    batch = _cairn.flatten(leaves, lambda leaf, fqn: leaf.source, [])
    batch.take_keys_as_fqns()
    return batch


def _new(code: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Memory that C++ fills: on the device if C++ can access it, otherwise in host memory."""
    return new_tensor(code, shape, device if devices.is_reached(device) else None)


def _target(code: int, tensor: torch.Tensor, sharding: Any = None) -> _Leaf:
    """The leaf of memory that C++ fills."""
    return _Leaf(Source(TENSOR, code, *_memory(tensor), tensor, sharding))


def _memory(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    """Shape, strides, address and device of memory that C++ can access."""
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr(), device_of(tensor)


_PLAIN = (int, float, str, bytes, io.BytesIO, type(None))


def _rebuild(state: Any, tensor: Callable[[Any, str], Any], type_check: bool, fqn: str = "") -> Any:
    """Returns the state with new containers, and ``tensor(value, fqn)`` in place of each tensor.
    Subclasses of dicts, lists and tuples become plain ones. Plain values remain the same objects.
    Other values are deep-copied; with ``type_check`` they raise Invalid instead."""
    if is_torch_tensor(state):
        return tensor(state, fqn)
    if isinstance(state, _PLAIN):
        return state
    if isinstance(state, dict):
        return {
            key: _rebuild(value, tensor, type_check, _below(fqn, key))
            for key, value in state.items()
        }
    if isinstance(state, (list, tuple)):
        items = [
            _rebuild(value, tensor, type_check, _below(fqn, i)) for i, value in enumerate(state)
        ]
        return tuple(items) if isinstance(state, tuple) else items
    if not type_check:
        return copy.deepcopy(state)
    raise refuse(fqn, f"of type {type(state).__name__}", "use type_check=False, or convert it")


def _below(fqn: str, key: Any) -> str:
    return f"{fqn}.{key}" if fqn else str(key)


def gather_state_dict(
    state_dict: dict[str, Any],
    *,
    pg: ProcessGroup | None = None,
    device: torch.device | None = None,
    cpu_offload: bool = False,
    ranks_only: tuple[int, ...] = (),
    type_check: bool = True,
) -> dict[str, Any]:
    """Returns the state with every sharded tensor as a complete plain tensor. Collective.

    Plain tensors and values are the same objects as in this rank's state. Each byte is sent once to
    every rank that gets the state.

    Args:
        pg: the process group, of which every rank calls this; by default the default group.
        device: the device of gathered ShardedTensors; by default the device of their shards.
            DTensors are gathered on the device of their mesh.
        cpu_offload: places all tensors in host memory.
        ranks_only: ranks of ``pg`` that get the state; the others get an empty dict. Empty: all
            ranks.
        type_check: ``False`` deep-copies values that are neither tensors nor plain values.

    Counterpart of torch's ``_gather_state_dict``. Unlike in torch, every rank of ``pg`` calls it,
    even if the mesh of a DTensor is smaller; ShardedTensors may be split in any way (torch: along
    dimension 0, one shard per rank); partial sums are refused, not reduced; and results never share
    memory with the state.

    Raises:
        Invalid: a shard does not fit its mesh, ranks disagree on a key, or a mesh has ranks outside
            ``pg``; a value of another type, with ``type_check`` (torch: ValueError).
        Unavailable: a rank died or did not respond in time.
    """

    def home(value: Any) -> torch.device:
        return torch.device("cpu") if cpu_offload else _home(value, device)

    with _ranks(pg) as ranks:
        is_wanted = not ranks_only or ranks.rank in ranks_only
        gathering, have_devices = ranks.run_together_with_devices(
            lambda: _Gathering(ranks, state_dict, type_check, home if is_wanted else None)
        )
        by_nccl = ranks.over_nccl(gathering.devices(), have_devices, device)
        gathering.move(ranks, ranks_only, by_nccl)
        gathered = ranks.run_together(gathering.gathered)
    ranks.warn()
    if not is_wanted:
        return {}

    def result(value: Any, fqn: str) -> Any:
        if is_sharded(value):
            return gathered[id(value)]
        return value.to("cpu") if cpu_offload else value

    return _rebuild(state_dict, result, type_check=False)


class _Gathering:
    """One rank's side of a gather: its shards, and the memory for gathered tensors."""

    def __init__(
        self,
        ranks: Ranks,
        state_dict: Any,
        type_check: bool,
        home: Callable[[Any], torch.device] | None,
    ) -> None:
        """``home``: the device of the gathered form of a sharded tensor; None: this rank does not
        get the state. Raises Invalid."""
        self._made: dict[str, tuple[int, torch.Tensor]] = {}
        """Dtype code and new memory of the gathered tensors."""
        self._homes: dict[str, tuple[int, torch.device]] = {}
        """The id of their sharded form, and their device."""
        shards = Shards(ranks)
        sources = Sources(shards)
        leaves: dict[str, _Leaf] = {}

        def tensor(value: Any, fqn: str) -> None:
            if not is_sharded(value):
                return
            shard = shards.of(value, fqn)
            if isinstance(shard, MeshShard):
                members = value.device_mesh.mesh.flatten().tolist()
            else:
                members = shards.groups[fqn]
            name = f"{min(members)}:{fqn}"  # distinct for copies on different meshes
            leaves[name] = _Leaf(sources.sharded(shard, value, fqn))
            if home is not None:
                code, device = leaves[name].source.dtype, home(value)
                self._made[name] = code, _new(code, global_shape_of(value), device)
                self._homes[name] = id(value), device

        _rebuild(state_dict, tensor, type_check)
        self._shards = _batch(leaves)
        self._whole = _batch({name: _target(*made) for name, made in self._made.items()})

    def devices(self) -> set[int]:
        """The devices of this rank's shards and of the tensors that are gathered here."""
        return {*self._shards.devices(), *self._whole.devices()}

    def move(self, ranks: Ranks, ranks_only: tuple[int, ...], by_nccl: bool) -> None:
        """Gathers. Collective."""
        communicator = ranks.communicator or _cairn.Communicator.alone()
        streams = devices.current_streams(self.devices())
        _cairn.gather_shards(communicator, self._shards, self._whole, ranks_only, by_nccl, streams)

    def gathered(self) -> dict[int, torch.Tensor]:
        """The gathered tensors on their devices, by the id of the sharded tensor."""
        return {
            value: self._made[name][1].to(device) for name, (value, device) in self._homes.items()
        }


def _home(like: Any, device: Any) -> torch.device:
    """The device on which a sharded tensor is gathered."""
    if is_dtensor(like):
        there = like._local_tensor.device
        kind = like.device_mesh.device_type
        return there if there.type == kind else torch.device(kind)
    if device is not None:
        return torch.device(device)
    if is_checkpointable(like):
        return like.device
    shards = like.local_shards()
    return shards[0].tensor.device if shards else torch.device("cpu")


class _Announced(NamedTuple):
    """The announcement of rank 0 about one key of its full state."""

    value: Any
    """The plain value or scalar; None for a tensor."""
    dtype: torch.dtype | None = None
    shape: tuple[int, ...] = ()


def broadcast_state_dict(
    full_state_dict: dict[str, Any],
    local_state_dict: dict[str, Any],
    device: torch.device,
    pg: ProcessGroup | None = None,
    strict: bool = False,
    cpu_offload: bool = False,
) -> None:
    """Copies rank 0's full state into the local state of every rank. Collective over ``pg``.

    Both are flat dicts from names to leaves. Names that ``local_state_dict`` lacks, or has as
    ``None``, are skipped. DTensors and ShardedTensors receive their part in place, converted to
    their dtype; meta DTensors and plain tensors are replaced by new ones on ``device``; scalars and
    other values are replaced by rank 0's.

    Args:
        full_state_dict: complete tensors and values; only rank 0 of ``pg`` uses it.
        device: the device of new tensors.
        strict: removes names from ``local_state_dict`` that the full state lacks.
        cpu_offload: places what was received in host memory.

    The memory in addition to the result is bounded. Values that are not tensors are sent pickled
    from rank 0 to the other ranks, as in torch; nothing is stored.

    Counterpart of torch's ``_broadcast_state_dict``. Unlike in torch, rank 0 is a rank of ``pg``,
    its result shares no memory with its full state, ShardedTensors remain sharded, and
    ``cpu_offload`` ignores names that ``local_state_dict`` lacks.

    Raises:
        Invalid: global shapes differ, or a value replaces a sharded tensor; on all ranks.
        Unavailable: a rank died or did not respond in time.
    """
    with _ranks(pg) as ranks:
        announced = _announce(ranks, full_state_dict)
        tensors = {
            str(i): key for i, (key, one) in enumerate(announced.items()) if one.dtype is not None
        }
        prepared, have_devices = ranks.run_together_with_devices(
            lambda: _Transfer(
                ranks,
                full_state_dict if ranks.rank == 0 else None,
                local_state_dict,
                tensors,
                announced,
                torch.device("cpu") if cpu_offload else torch.device(device),
            )
        )
        by_nccl = ranks.over_nccl(prepared.devices(), have_devices, device)
        communicator = ranks.communicator or _cairn.Communicator.alone()
        streams = devices.current_streams(prepared.devices())
        _cairn.broadcast_to_shards(communicator, prepared.full, prepared.target, by_nccl, streams)
        ranks.run_together(lambda: prepared.put(local_state_dict, device))
    for key, one in announced.items():
        if one.dtype is None and key in local_state_dict:
            local_state_dict[key] = one.value
    _finish(local_state_dict, announced, strict, cpu_offload)
    ranks.warn()


def _announce(ranks: Ranks, full_state_dict: dict[str, Any]) -> dict[str, _Announced]:
    def encode_local() -> bytes:
        if ranks.rank > 0:
            return b""
        return pickle.dumps({key: _announced(value) for key, value in full_state_dict.items()})

    return pickle.loads(ranks.exchange(encode_local)[0])


def _announced(value: Any) -> _Announced:
    if not torch.is_tensor(value):
        return _Announced(value)
    if value.dim() == 0:
        return _Announced(value.detach().cpu())
    return _Announced(None, value.dtype, tuple(value.shape))


def _finish(
    local: dict[str, Any], announced: dict[str, _Announced], strict: bool, cpu_offload: bool
) -> None:
    if strict:
        for key in [key for key in local if key not in announced]:
            del local[key]
    if cpu_offload:
        for key, one in announced.items():
            if one.dtype is not None and local.get(key) is not None:
                fields = vars(local[key]) if is_checkpointable(local[key]) else {}
                local[key] = local[key].cpu()
                vars(local[key]).update(fields)


class _Transfer:
    """One rank's side of a broadcast or distribution: full tensors and the shards that they
    fill."""

    def __init__(
        self,
        ranks: Ranks,
        full: dict[str, Any] | None,
        local: dict[str, Any],
        tensors: dict[str, str],
        announced: dict[str, _Announced],
        device: torch.device,
    ) -> None:
        """``full``: None on a rank that only describes it; ``tensors``: the names to copy, by
        short identifier; ``device``: the device of new tensors. Raises Invalid."""
        self._device = device
        self._made: dict[str, torch.Tensor] = {}
        """New memory, which `put` moves into the state, by short identifier."""
        self._keys = {name: key for name, key in tensors.items() if local.get(key) is not None}
        shards = Shards(ranks)
        sources = Sources(shards)
        self.full = _batch(
            {
                name: _Leaf(
                    _description(announced[key], key)
                    if full is None
                    else _full_tensor(full[key], key, sources)
                )
                for name, key in tensors.items()
            }
        )
        self.target = _batch(
            {
                name: self._slot(name, local[key], shards, announced[key])
                for name, key in self._keys.items()
            }
        )

    def devices(self) -> set[int]:
        """The devices of this rank's tensors."""
        return {*self.full.devices(), *self.target.devices()}

    def _slot(self, name: str, value: Any, shards: Shards, full: _Announced) -> _Leaf:
        """The target of the bytes, in the dtype in which they are sent."""
        key, dtype = self._keys[name], full.dtype
        code = dtype_code(dtype, key)
        if not is_sharded(value):
            made = self._made[name] = _new(code, full.shape, self._device)
            return _target(code, made)
        shard = shards.of(value, key)
        if not isinstance(shard, MeshShard):
            return _Leaf(self._boxes(shard, value, key, dtype))
        local = shard.local
        if not shard.is_here:
            return _Leaf(Source(TENSOR, code, (0,), (1,), 0, HOST, local, shard.native()))
        is_plain = local.dtype == dtype and not local.is_conj() and not local.is_neg()
        if is_plain and device_of(local) is not None:
            made = local.detach()  # another thread may give the tensor object other memory
        else:
            place = self._device if local.is_meta else local.device
            made = self._made[name] = _new(code, tuple(local.shape), place)
        return _target(code, made, shard.native())

    def _boxes(self, shard: Any, value: Any, key: str, dtype: Any) -> Source:
        parts, owners = [], []
        for offsets, sizes, memory in shard.boxes:
            if device_of(memory) is None or memory.dtype != dtype or memory.is_conj():
                raise refuse(
                    key,
                    f"a ShardedTensor of {memory.dtype} on {memory.device} that should get {dtype}",
                    "give it that dtype, in host memory or on a CUDA device, or use DTensor",
                )
            owners.append(memory.detach())
            parts.append((offsets, sizes, *_memory(owners[-1])[1:]))
        sharding = (shard.global_shape, None, parts)
        return Source(TENSOR, dtype_code(dtype, key), (0,), (1,), 0, HOST, owners, sharding)

    def put(self, local: dict[str, Any], device: Any) -> None:
        """Moves what was received in new memory into the local state."""
        for name, tensor in self._made.items():
            key = self._keys[name]
            value = local[key]
            if not is_dtensor(value):
                local[key] = tensor.to(device)
            elif value.is_meta:
                local[key] = dtensor_like(value, tensor.to(device))
            else:
                with torch.no_grad():
                    value._local_tensor.copy_(tensor)


def _description(one: _Announced, key: str) -> Source:
    """A tensor that this rank does not have."""
    code = dtype_code(one.dtype, key)
    return Source(TENSOR, code, one.shape, row_major(one.shape), 0, HOST, None)


def _full_tensor(value: Any, key: str, sources: Sources) -> Source:
    if is_sharded(value):
        raise refuse(key, "sharded in the full state", "gather it first (full_tensor())")
    return sources.take(value, key)


def distribute_state_dict(
    full_state_dict: dict[str, Any],
    local_state_dict: dict[str, Any],
    device: torch.device,
    pg: ProcessGroup | None = None,
) -> None:
    """Copies this rank's part of a full state that every rank has into its local state.

    Both are flat dicts from names to leaves. DTensors are replaced by new ones with the same mesh
    and placements on ``device``, plain tensors by the full state's tensors on ``device`` (the same
    memory if they are already there). Names that ``local_state_dict`` lacks, or has as ``None``,
    are skipped. Scalars and other values are copied even if ``local_state_dict`` lacks them.

    Args:
        pg: unused, because nothing is sent.

    Counterpart of torch's ``_distribute_state_dict``. Unlike in torch, each rank splits its own
    full state (torch: rank 0's is sent), ShardedTensors are filled in place, and a rank may call it
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
    # DTensors get new memory with the dtype of the full state.
    slots = {key: _meta_like(value) if is_dtensor(value) else value for key, value in local.items()}
    names = {str(i): key for i, key in enumerate(local)}
    transfer = _Transfer(ranks, full_state_dict, slots, names, announced, torch.device(device))
    streams = devices.current_streams(transfer.devices())
    _cairn.distribute_to_shards(transfer.full, transfer.target, ranks.rank, streams)
    transfer.put(slots, device)
    for key, value in full_state_dict.items():
        if not torch.is_tensor(value):
            local_state_dict[key] = value
        elif value.dim() == 0:
            local_state_dict[key] = value.cpu()
        elif key in local:
            local_state_dict[key] = slots[key]
        elif local_state_dict.get(key) is not None:
            local_state_dict[key] = value.detach().to(device)


def _meta_like(value: Any) -> Any:
    return dtensor_like(value, torch.empty_like(value._local_tensor, device="meta"))


def _is_array(value: Any) -> bool:
    return torch.is_tensor(value) and value.dim() > 0
