"""Tensors of the caller as sources of a save: where their bytes are, and what is refused.

Other threads may change a tensor or an array object while C++ uses its memory. Therefore the memory
is kept, not only the object: of a torch tensor by a second tensor object with the same storage, and
of a numpy array as `held` does. `storage.resize_` frees memory that others refer to. C++ finds this
afterwards, and refuses the save (docs/torch.md).

torch tensors, numpy arrays and scalars, and objects that support DLPack become an address with
dtype, shape, strides and device. Only memory that C++ cannot read is copied: tensors on other
devices, lazily conjugated or negated tensors, arrays in foreign byte order or with negative
strides. A front end of another library gives a tensor as boxes in host memory (`BoxedTensor`).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from cairn._base import dtypes
from cairn._base.devices import HOST, device_of
from cairn._base.tree import NUMPY_ARRAY, NUMPY_SCALAR, TENSOR
from cairn._ranks.sharded import BoxShard, MeshShard, Shards, arrived, is_sharded
from cairn._tensors.host_copies import HostCopies
from cairn._tensors.subclasses import is_subclass
from cairn.errors import refuse

if TYPE_CHECKING:
    import numpy as np


class Source(NamedTuple):
    """Readable memory of one tensor, as C++ expects it. `owner` keeps it alive."""

    kind: int
    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: int
    owner: Any
    sharding: tuple[Any, ...] | None = None
    """How the tensor is sharded, if this is the local part of a sharded tensor."""


def is_torch_tensor(value: Any) -> bool:
    torch = dtypes.loaded_torch()
    return torch is not None and isinstance(value, torch.Tensor)


def is_tensor_like(value: Any) -> bool:
    """True for objects that can be saved as a tensor, or filled from one."""
    return (
        is_torch_tensor(value)
        or dtypes.is_array(value)
        or dtypes.is_numpy_scalar(value)
        or (hasattr(value, "__dlpack__") and not isinstance(value, type))
    )


class Box(NamedTuple):
    """A box of a tensor. The dtype of `array` has the element size of the tensor's dtype."""

    offsets: tuple[int, ...]
    array: np.ndarray


class BoxedTensor:
    """The boxes of a tensor that this rank writes. The boxes of all ranks form the tensor. It is
    stored as a torch tensor.

    Args:
        dtype: its code.
        shape: of the complete tensor.
        boxes: without overlap; none if other ranks write everything.
        is_replicated: the box is the complete tensor, which is equal on all ranks that have it.
    """

    def __init__(
        self,
        dtype: int,
        shape: tuple[int, ...],
        boxes: list[Box],
        *,
        is_replicated: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.boxes = boxes
        self.is_replicated = is_replicated

    @property
    def is_complete(self) -> bool:
        """Whether one box is the complete tensor."""
        return len(self.boxes) == 1 and self.boxes[0].array.shape == self.shape


class Sources:
    """Makes the sources of leaves. Each save has its own object, which remembers copied storages.

    Tensors that C++ cannot access are copied into `copies`, which a store keeps from save to save.
    With `parts`, this process may hold a part of a tensor although it is the only rank.
    """

    def __init__(
        self, shards: Shards, copies: HostCopies | None = None, *, parts: bool = False
    ) -> None:
        self._shards = shards
        self._takes_parts = parts
        self._round = (HostCopies() if copies is None else copies).round()

    def take(self, value: Any, fqn: str) -> Source | None:
        """The source of a tensor-like `value`, or None for anything else. Raises Invalid."""
        if is_sharded(value):
            shard = self._shards.of(value, fqn)
            is_mesh = isinstance(shard, MeshShard) and not self._takes_parts
            if is_mesh and self._shards.is_complete(shard, fqn):
                return self._torch(shard.local, fqn)
            return self.sharded(shard, value, fqn)
        if is_torch_tensor(value):
            return self._torch(value, fqn)
        if dtypes.is_array(value):
            return _numpy(value, fqn, NUMPY_ARRAY)
        if dtypes.is_numpy_scalar(value):
            import numpy as np

            return _numpy(np.asarray(value), fqn, NUMPY_SCALAR)
        if isinstance(value, BoxedTensor):
            return self._boxed(value, fqn)
        if is_tensor_like(value):
            return self._torch(from_dlpack(value, fqn), fqn)
        return None

    def sharded(self, shard: MeshShard | BoxShard, value: Any, fqn: str) -> Source:
        """The source of the local part of a sharded tensor. Raises Invalid."""
        if isinstance(shard, MeshShard):
            if not shard.is_here:
                code = check_torch(shard.local, fqn)
                return Source(TENSOR, code, (0,), (1,), 0, HOST, value, shard.native())
            return self._torch(shard.local, fqn)._replace(sharding=shard.native())
        parts, owners = [], []
        code = box_dtype(shard, value, fqn)
        for offsets, sizes, memory in shard.boxes:
            source = self._torch(memory, fqn)
            parts.append((offsets, sizes, source.strides, source.address, source.device))
            owners.append(source.owner)
        sharding = (shard.global_shape, None, parts)
        if shard.may_be_copy:
            self._shards.copied[fqn] = sharding
        return Source(TENSOR, code, (0,), (1,), 0, HOST, owners, sharding)

    def _boxed(self, value: BoxedTensor, fqn: str) -> Source:
        sources = [_numpy_as(box.array, value.dtype) for box in value.boxes]
        if value.is_replicated or (value.is_complete and self._shards.is_alone):
            return sources[0]
        self._shards.groups[fqn] = self._shards.all_ranks
        parts = [
            (box.offsets, source.shape, source.strides, source.address, HOST)
            for box, source in zip(value.boxes, sources)
            if box.array.size > 0
        ]
        owners = [source.owner for source in sources]
        sharding = (value.shape, None, parts)
        return Source(TENSOR, value.dtype, (0,), (1,), 0, HOST, owners, sharding)

    def _torch(self, tensor: Any, fqn: str) -> Source:
        tensor = arrived(tensor)
        code = check_torch(tensor, fqn)
        if tensor.device.type == "meta":
            raise refuse(fqn, "a meta tensor, which has no data", "materialize it before the save")
        tensor = tensor.detach().resolve_conj().resolve_neg()
        # Checked before the copy, which would have new memory.
        if tensor.data_ptr() == 0 and tensor.numel() > 0:
            raise refuse(fqn, "a tensor whose storage was freed", "exclude it, or restore it")
        device = device_of(tensor)
        if device is None:
            # Complete storages, so that tensors that share one on the device share its copy, too.
            tensor, device = self._round.tensor(tensor), HOST
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return Source(TENSOR, code, shape, strides, tensor.data_ptr(), device, tensor)


def box_dtype(shard: BoxShard, value: Any, fqn: str) -> int:
    """The code of the dtype of the shards, or of `value` if it has none here. Raises Invalid."""
    codes = {dtype_code(memory.dtype, fqn) for _, _, memory in shard.boxes}
    if len(codes) > 1:
        raise refuse(fqn, "a tensor whose shards have several dtypes", "convert them first")
    return codes.pop() if codes else dtype_code(value.dtype, fqn)


def from_dlpack(value: Any, fqn: str) -> Any:
    """A torch tensor over the memory of an object that supports DLPack. Raises Invalid."""
    try:
        return dtypes.require_torch().from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        way_out = f"convert it to a torch tensor yourself ({error})"
        raise refuse(
            fqn, f"a {type(value).__name__} that torch cannot take by DLPack", way_out
        ) from error


def check_torch(tensor: Any, fqn: str) -> int:
    """The code of the dtype. Raises Invalid for a tensor that is not plain strided memory."""
    torch = dtypes.require_torch()
    if tensor.is_quantized:
        raise refuse(
            fqn,
            f"a quantized tensor ({tensor.dtype})",
            "save .int_repr(), .q_scale() and .q_zero_point() (or their per-channel forms) instead",
        )
    if tensor.is_nested:
        raise refuse(fqn, "a nested tensor", "save .values() and .offsets(), or .unbind(), instead")
    if tensor.layout is not torch.strided:
        raise refuse(
            fqn,
            f"a tensor that is sparse or has another special layout ({tensor.layout})",
            "save its parts (.indices() and .values(), ...) or .to_dense() instead",
        )
    if is_subclass(tensor):  # others are replaced by their inner tensors before
        raise refuse(
            fqn,
            f"a DTensor whose local tensor is a {type(tensor).__qualname__}, which has no defined "
            "place in a complete tensor",
            'save its to_local() under one key per rank, such as f"state.{rank}"',
        )
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise refuse(
            fqn,
            f"a {type(tensor).__qualname__}, a subclass that would be loaded as a plain tensor",
            "save the plain tensors that it consists of, or .as_subclass(torch.Tensor), instead",
        )
    return dtype_code(tensor.dtype, fqn)


def dtype_code(dtype: Any, fqn: str) -> int:
    """The code of a torch dtype. Raises Invalid."""
    code = dtypes.code_of_torch(dtype)
    if code is None:
        raise refuse(fqn, f"of {dtype}, which Cairn does not support", "convert it first")
    return code


def check_numpy(array: np.ndarray, fqn: str) -> int:
    """The code of the dtype. Raises Invalid for arrays of anything other than plain numbers."""
    import numpy as np

    if type(array) not in (np.ndarray, np.memmap):
        raise refuse(
            fqn,
            f"an array of the subclass {type(array).__qualname__}",
            "save np.asarray(...) of it, and its other contents separately, instead",
        )
    code = dtypes.code_of_numpy(array.dtype.newbyteorder("="))
    if code is None:
        raise refuse(
            fqn,
            f"a numpy array of dtype {array.dtype}",
            "only numbers and bools are supported; convert it, or view it as integers, first",
        )
    return code


def _numpy(array: np.ndarray, fqn: str, kind: int) -> Source:
    code = check_numpy(array, fqn)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return _numpy_as(array, code, kind)


def _numpy_as(array: np.ndarray, code: int, kind: int = TENSOR) -> Source:
    """The source of an array whose elements have the bytes of a dtype that numpy may lack."""
    owner = held(array)  # before the memory is described
    strides = element_strides(array)
    if strides is None:
        array = array.copy(order="C")
        owner, strides = held(array), row_major(array.shape)
    return Source(kind, code, array.shape, strides, address_of(array), HOST, owner)


def held(array: np.ndarray) -> tuple[Any, ...]:
    """References that keep the memory of an array where it is. numpy does not resize an array that
    has a weak reference, not even with ``refcheck=False``."""
    import numpy as np

    references: list[Any] = [array]
    owner: Any = array
    while isinstance(owner, np.ndarray):
        references.append(weakref.ref(owner))
        owner = owner.base
    return tuple(references)


def element_strides(array: np.ndarray) -> tuple[int, ...] | None:
    """Strides in elements, or None if one is negative or not a multiple of the element size."""
    if array.size == 0:
        return row_major(array.shape)
    item_bytes = array.dtype.itemsize
    if any(stride < 0 or stride % item_bytes for stride in array.strides):
        return None
    return tuple(stride // item_bytes for stride in array.strides)


def address_of(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a contiguous tensor."""
    strides = []
    stride = 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))
