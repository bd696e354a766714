"""DTensor, ShardedTensor and other sharded objects: the part of a global tensor on this rank, as
C++ describes it.

Other objects are those that describe their shards to torch.distributed.checkpoint: as
LocalShardsWrapper, which torchrec places into DTensors, whose class has `__create_write_items__`,
`__create_chunk_list__` and `__get_tensor_shard__`; or as torch's `CheckpointableTensor`, a tensor
with the fields `global_shape`, `global_offsets`, `local_offsets` and `local_sizes`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn import _cairn
from cairn._ranks.ranks import Ranks
from cairn.errors import Invalid, refuse

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

REPLICATE, SHARD, STRIDED_SHARD = range(3)  # core::Placement::Kind


Sharding = tuple[Any, ...]
"""(shape, mesh, placements), or (shape, None, parts), as C++ takes it."""


class MeshShard(NamedTuple):
    """The local tensor of a DTensor."""

    global_shape: tuple[int, ...]
    mesh: _cairn.Mesh
    placements: tuple[tuple[int, int, int], ...]
    local: torch.Tensor
    is_here: bool
    """False on ranks outside the mesh, which hold no part of the tensor."""

    def native(self) -> tuple[Any, ...]:
        return self.global_shape, self.mesh, self.placements


class BoxShard(NamedTuple):
    """The local shards of a ShardedTensor, or of an object that describes its shards."""

    global_shape: tuple[int, ...]
    boxes: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.Tensor], ...]
    """(offsets, sizes, memory) of each shard."""
    may_be_copy: bool = False
    """Whether other ranks may hold the same shards."""


def class_of(module: str, name: str) -> type | None:
    # If the module has not been imported, no object of the class can exist.
    return getattr(sys.modules.get(module), name, None)


def is_dtensor(value: Any) -> bool:
    dtensor = class_of("torch.distributed.tensor", "DTensor")
    return dtensor is not None and isinstance(value, dtensor)


def is_sharded_tensor(value: Any) -> bool:
    sharded = class_of("torch.distributed._shard.sharded_tensor", "ShardedTensor")
    return sharded is not None and isinstance(value, sharded)


def describes_shards(value: Any) -> bool:
    """True for an object that describes its shards to torch.distributed.checkpoint, and for a
    DTensor around one."""
    if is_dtensor(value):
        value = value._local_tensor
    return all(hasattr(type(value), name) for name in _SHARD_METHODS)


def is_checkpointable(value: Any) -> bool:
    """True for a tensor with the fields of torch's CheckpointableTensor, whatever the version."""
    return (
        hasattr(value, "global_shape")  # few objects have it
        and all(hasattr(value, name) for name in _SHARD_FIELDS)
        and isinstance(value, class_of("torch", "Tensor") or ())
    )


def global_shape_of(value: Any) -> tuple[int, ...]:
    """The shape of the global tensor of which a sharded object holds a part."""
    return tuple(value.global_shape if is_checkpointable(value) else value.shape)


_SHARD_FIELDS = ("global_offsets", "local_offsets", "local_sizes")
_SHARD_METHODS = ("__create_write_items__", "__create_chunk_list__", "__get_tensor_shard__")


def is_sharded(value: Any) -> bool:
    return (
        is_dtensor(value)
        or is_sharded_tensor(value)
        or describes_shards(value)
        or is_checkpointable(value)
    )


def local_of(dtensor: Any) -> torch.Tensor:
    """The local tensor, without autograd. Waits for a collective that is filling it."""
    return arrived(dtensor._local_tensor)


def arrived(tensor: Any) -> Any:
    """The result of a functional collective, after waiting for it; any other tensor unchanged."""
    waiting = class_of("torch.distributed._functional_collectives", "AsyncCollectiveTensor")
    return tensor.wait() if waiting is not None and isinstance(tensor, waiting) else tensor


def dtensor_like(value: Any, local: torch.Tensor) -> Any:
    """A DTensor with the mesh, placements and shape of another one, around new local memory."""
    from torch.distributed.tensor import DTensor

    # Shape and stride are given, because an uneven local shape does not determine them.
    return DTensor.from_local(
        local,
        value.device_mesh,
        value.placements,
        run_check=False,
        shape=value.shape,
        stride=value.stride(),
    )


class Shards:
    """Describes the local parts of sharded tensors. Each save or load has its own object, which
    keeps the meshes alive."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._meshes: dict[int, tuple[DeviceMesh, _cairn.Mesh]] = {}
        """By id. The DeviceMesh is kept alive, so that its id remains unique."""
        self.groups: dict[str, list[int]] = {}
        """Ranks that hold one copy of each tensor that is described as boxes, by FQN."""
        self.copied: dict[str, Sharding] = {}
        """The shardings of shards that other ranks may hold too, by FQN."""

    @property
    def is_alone(self) -> bool:
        """Whether the store has one rank."""
        return self._ranks.world_size == 1

    @property
    def all_ranks(self) -> list[int]:
        return list(range(self._ranks.world_size))

    def of(self, value: Any, fqn: str) -> MeshShard | BoxShard:
        """The part of the tensor on this rank. Raises Invalid."""
        if describes_shards(value):
            return self._described(value, fqn)
        if is_checkpointable(value):
            return self._checkpointable(value, fqn)
        return self._dtensor(value, fqn) if is_dtensor(value) else self._boxes(value, fqn)

    def is_complete(self, shard: MeshShard, fqn: str) -> bool:
        """True if this process is the only rank of the store and holds the complete tensor. Raises
        Invalid if it is the only rank and holds a part."""
        if self._ranks.world_size > 1:
            return False
        if shard.is_here and tuple(shard.local.shape) == shard.global_shape:
            return True
        raise refuse(
            fqn,
            "a DTensor of which other ranks hold a part, in a store that only this rank has open",
            "open the store on all ranks without alone=True, or save its full_tensor()",
        )

    def _dtensor(self, value: Any, fqn: str) -> MeshShard:
        mesh = value.device_mesh
        placements = tuple(placement_of(placement, fqn) for placement in value.placements)
        return MeshShard(
            tuple(value.shape),
            self._mesh(mesh, fqn),
            placements,
            local_of(value),
            mesh.get_coordinate() is not None,
        )

    def _boxes(self, value: Any, fqn: str) -> BoxShard:
        from torch.distributed import get_process_group_ranks

        group = self._ranks.numbers_of(get_process_group_ranks(value._process_group))
        if group is None:
            raise self._not_ours(fqn, "ShardedTensor", "group")
        self.groups[fqn] = group
        boxes = tuple(
            (
                tuple(shard.metadata.shard_offsets),
                tuple(shard.metadata.shard_sizes),
                shard.tensor.detach(),
            )
            for shard in value.local_shards()
            if shard.tensor.numel() > 0
        )
        return BoxShard(tuple(value.size()), boxes)

    def _described(self, value: Any, fqn: str) -> BoxShard:
        from torch.distributed.checkpoint.metadata import MetadataIndex

        items = value.__create_write_items__(fqn, value)
        if any(item.tensor_data is None for item in items):
            raise refuse(fqn, "an object with shards that are not tensors", "save its state")
        sizes = {tuple(item.tensor_data.size) for item in items} or {tuple(value.size())}
        if len(sizes) > 1:
            raise refuse(fqn, "an object whose shards belong to several tensors", "save each one")
        self.groups[fqn] = self._group_of(value, fqn)
        boxes = []
        for chunk in value.__create_chunk_list__():
            shard = value.__get_tensor_shard__(MetadataIndex(fqn, chunk.offsets)).detach()
            if shard.device.type == "meta":
                raise refuse(fqn, "an object with a shard on the meta device", "give it memory")
            if shard.numel() > 0:
                boxes.append((tuple(chunk.offsets), tuple(chunk.sizes), shard))
        return BoxShard(sizes.pop(), tuple(boxes))

    def _checkpointable(self, value: Any, fqn: str) -> BoxShard:
        if value.device.type == "meta":
            raise refuse(fqn, "a CheckpointableTensor on the meta device", "give it memory")
        shape, memory = tuple(value.global_shape), value.detach()
        boxes = []
        try:
            for fields in zip(
                value.global_offsets, value.local_offsets, value.local_sizes, strict=True
            ):
                offsets, inside, sizes = map(tuple, fields)
                bounds = zip(offsets, inside, sizes, shape, memory.shape, strict=True)
                if any(
                    min(at, start, size) < 0 or at + size > whole or start + size > local
                    for at, start, size, whole, local in bounds
                ):
                    raise ValueError(f"a shard of {sizes} at {offsets} and {inside} is outside")
                if 0 not in sizes:
                    spans = tuple(slice(at, at + size) for at, size in zip(inside, sizes))
                    boxes.append((offsets, sizes, memory[spans]))
        except ValueError as error:
            raise refuse(
                fqn, f"a CheckpointableTensor with wrong fields ({error})", "correct them"
            ) from None
        self.groups[fqn] = self.all_ranks
        return BoxShard(shape, tuple(boxes), may_be_copy=True)

    def _group_of(self, value: Any, fqn: str) -> list[int]:
        """The ranks that hold one copy of an object that describes its shards."""
        if not is_dtensor(value):
            return list(range(self._ranks.world_size))
        # Along dimensions of the mesh that replicate, other ranks hold other copies.
        ranks = value.device_mesh.mesh
        coordinate = value.device_mesh.get_coordinate() or [0] * ranks.ndim
        for dim, placement in reversed(list(enumerate(value.placements))):
            if placement.is_replicate():
                ranks = ranks.select(dim, coordinate[dim])
        group = self._ranks.numbers_of(ranks.flatten().tolist())
        if group is None:
            raise self._not_ours(fqn, "DTensor", "mesh")
        return group

    def _mesh(self, mesh: DeviceMesh, fqn: str) -> _cairn.Mesh:
        known = self._meshes.get(id(mesh))
        if known is None:
            ranks = self._ranks.numbers_of(mesh.mesh.flatten().tolist())
            if ranks is None:
                raise self._not_ours(fqn, "DTensor", "mesh")
            known = mesh, _cairn.Mesh(tuple(mesh.mesh.shape), ranks)
            self._meshes[id(mesh)] = known
        return known[1]

    def _not_ours(self, fqn: str, what: str, where: str) -> Invalid:
        return refuse(
            fqn,
            f"a {what} of a {where} with ranks that have not opened the store",
            f"open it with a process group that contains all ranks of the {where}",
        )


def placement_of(placement: Any, fqn: str) -> tuple[int, int, int]:
    """(kind, dimension, split factor). Raises Invalid for a placement that cannot be saved."""
    from torch.distributed.tensor.placement_types import _StridedShard

    if isinstance(placement, _StridedShard):
        return STRIDED_SHARD, placement.dim, placement.split_factor
    if placement.is_shard():
        return SHARD, placement.dim, 1
    if placement.is_replicate():
        return REPLICATE, 0, 1
    raise refuse(
        fqn,
        f"a DTensor with the placement {placement}, a sum that is still pending",
        "redistribute it to Shard or Replicate first",
    )
