"""Memory as the target of a load: that of the caller, where it is and what is refused, and new
memory in place of meta tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, NamedTuple

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.devices import HOST, device_of
from cairn._ranks.ranks import Ranks
from cairn._ranks.sharded import arrived, dtensor_like, is_dtensor, is_sharded_tensor
from cairn._tensors.sources import (
    address_of,
    check_numpy,
    check_torch,
    dtype_code,
    element_strides,
    from_dlpack,
    held,
    is_tensor_like,
    is_torch_tensor,
    row_major,
)
from cairn.errors import Invalid, refuse

if TYPE_CHECKING:
    import numpy as np


class Target(NamedTuple):
    """Writable memory of one tensor, which `owner` keeps alive as in `cairn._tensors.sources`.
    `complete` must be called after the load."""

    dtype: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    device: int
    owner: Any
    finish: Callable[[], None] | None
    """Copies the bytes to their final destination, if this is not it."""
    fqn: str

    def complete(self) -> None:
        """Raises Invalid if `storage.resize_` has freed the memory."""
        if is_torch_tensor(self.owner) and self.owner.data_ptr() != self.address:
            raise Invalid(
                f"the storage of '{self.fqn}' was resized while it was loaded: resize no storage "
                "before the load has ended, and load the state again",
                key=self.fqn,
            )
        if self.finish is not None:
            self.finish()


def mark_changed(values: Iterable[Any]) -> None:
    """Tells torch that a load, which begins after this, changes the tensors among `values`, so that
    autograd refuses a backward pass that needs their earlier values."""
    tensors = [value for value in values if is_torch_tensor(value)]
    if not tensors:
        return
    increment = dtypes.require_torch().autograd.graph.increment_version
    try:
        increment(tensors)
    except TypeError:  # an older torch takes one
        for tensor in tensors:
            increment(tensor)


def target_of(value: Any, fqn: str) -> Target:
    """The target of a torch tensor (not meta), numpy array or DLPack object. Raises Invalid."""
    if dtypes.is_array(value):
        return _numpy(value, fqn)
    if not is_torch_tensor(value):
        if not is_tensor_like(value):
            raise refuse(fqn, f"of type {type(value).__name__}", "a tensor or array is needed here")
        value = from_dlpack(value, fqn)
    return _torch(value, fqn)


def host_target_of(value: Any, fqn: str) -> Target:
    """As `target_of`, but in host memory: `finish` copies to a tensor on a device."""
    target = target_of(value, fqn)
    return target if target.device == HOST else _staged(target.owner, target.dtype, fqn)


def new_tensor(code: int, shape: tuple[int, ...], device: Any = None) -> Any:
    """An uninitialized row-major torch tensor on a device, by default in host memory."""
    torch = dtypes.require_torch()
    dtype = dtypes.torch_dtype(code)
    if device is not None:
        return torch.empty(shape, dtype=dtype, device=device)
    made = _cairn.new_large_tensor(code, shape)
    return torch.empty(shape, dtype=dtype, device="cpu") if made is None else made


def new_array(code: int, shape: tuple[int, ...]) -> np.ndarray:
    """An uninitialized numpy array."""
    import numpy as np

    return np.empty(shape, dtype=dtypes.numpy_dtype(code))


def _torch(tensor: Any, fqn: str) -> Target:
    tensor = arrived(tensor)
    code = check_torch(tensor, fqn)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    _check_overlap(shape, strides, fqn)
    device = device_of(tensor)
    if device is not None and not tensor.is_conj() and not tensor.is_neg():
        owner = tensor.detach()
        return Target(code, shape, strides, owner.data_ptr(), device, owner, None, fqn)
    return _staged(tensor, code, fqn)


def staged_target_of(tensor: Any, stored: int, fqn: str) -> Target:
    """The target of a torch tensor for stored contents of the dtype `stored`: the tensor itself if
    C++ can fill it, otherwise memory that `finish` copies to the tensor, with conversion."""
    torch = dtypes.require_torch()
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and stored == dtypes.code_of_torch(
        tensor.dtype
    ):
        return target_of(tensor, fqn)
    return _staged(tensor, stored, fqn)


def _staged(tensor: Any, code: int, fqn: str) -> Target:
    torch = dtypes.require_torch()
    shape = tuple(tensor.shape)
    staged = new_tensor(code, shape)

    def finish() -> None:
        with torch.no_grad():
            tensor.copy_(staged)

    return Target(code, shape, row_major(shape), staged.data_ptr(), HOST, staged, finish, fqn)


def _numpy(array: np.ndarray, fqn: str) -> Target:
    code = check_numpy(array, fqn)
    if not array.flags.writeable:
        raise refuse(fqn, "a read-only numpy array", "load into a copy")
    owner = held(array)  # before the memory is described
    strides = element_strides(array)
    if strides is not None:
        _check_overlap(array.shape, strides, fqn)
    if strides is not None and array.dtype.isnative:
        return Target(code, array.shape, strides, address_of(array), HOST, owner, None, fqn)
    staged = new_array(code, array.shape)

    def finish() -> None:
        import numpy as np

        np.copyto(array, staged)

    address = address_of(staged)
    return Target(code, array.shape, row_major(array.shape), address, HOST, staged, finish, fqn)


def _check_overlap(shape: tuple[int, ...], strides: tuple[int, ...], fqn: str) -> None:
    """Raises Invalid for targets whose elements may share memory, such as expanded tensors."""
    reach = 1
    for stride, size in sorted(zip(strides, shape)):
        if size == 0:
            return
        if size == 1:
            continue
        if stride < reach:
            raise refuse(
                fqn, "a tensor whose elements share memory (expanded?)", "load into a copy"
            )
        reach += stride * (size - 1)


def check_shape(fqn: str, step: int, stored: tuple[int, ...], given: tuple[int, ...]) -> None:
    """Raises Invalid if the shapes differ."""
    if stored != given:
        raise Invalid(
            f"'{fqn}' has the shape {list(stored)} in step {step} but {list(given)} in the target: "
            "give the target the shape of the step",
            key=fqn,
            step=step,
        )


def check_same(
    fqn: str,
    step: int,
    stored: tuple[int, tuple[int, ...]],
    given: tuple[int, tuple[int, ...]],
    way_out: str,
) -> None:
    """Raises Invalid if (dtype code, shape) differ. `way_out` states what to do."""
    if stored == given:
        return
    stored_text, given_text = (
        f"{dtypes.name_of(code)} {list(shape)}" for code, shape in (stored, given)
    )
    raise Invalid(
        f"'{fqn}' is {stored_text} in step {step} but {given_text} in the target: {way_out}",
        key=fqn,
        step=step,
    )


class MetaTensorFactory:
    """Creates tensors to replace meta tensors. Each load has its own factory, which returns one
    tensor for all meta tensors that are tied."""

    def __init__(self, device: Any, ranks: Ranks) -> None:
        self._device = device
        self._ranks = ranks
        self._made: dict[tuple, tuple[Any, Any]] = {}
        """(meta tensor, new tensor), by the memory that the meta tensor represents."""

    def make(self, meta: Any, fqn: str) -> Any:
        """An uninitialized tensor like ``meta``; a DTensor if ``meta`` is one. Raises Invalid."""
        import torch

        if is_sharded_tensor(meta):
            raise refuse(
                fqn, "a ShardedTensor on the meta device", "use DTensor, or give it memory first"
            )
        place = _place(meta._local_tensor if is_dtensor(meta) else meta)
        place += (isinstance(meta, torch.nn.Parameter), meta.requires_grad)
        if place not in self._made:
            made = self._dtensor(meta, fqn) if is_dtensor(meta) else self._plain(meta, fqn)
            if isinstance(meta, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=meta.requires_grad)
            elif meta.requires_grad:
                made.requires_grad_()
            # The meta tensor is kept alive, so that the id of its storage remains unique.
            self._made[place] = meta, made
        return self._made[place][1]

    def _plain(self, meta: Any, fqn: str) -> Any:
        return _empty(meta.dtype, tuple(meta.shape), meta.stride(), self._default_device(), fqn)

    def _dtensor(self, meta: Any, fqn: str) -> Any:
        local = meta._local_tensor
        device = self._mesh_device(meta.device_mesh)
        made = _empty(local.dtype, tuple(local.shape), local.stride(), device, fqn)
        return dtensor_like(meta, made)

    def _default_device(self) -> Any:
        import torch

        if self._device is not None:
            return torch.device(self._device)
        if self._ranks.device is not None:
            return self._ranks.device
        default = torch.get_default_device()
        return torch.device("cpu") if default.type == "meta" else default

    def _mesh_device(self, mesh: Any) -> Any:
        import torch

        if self._device is not None:
            return torch.device(self._device)
        if mesh.device_type == "cpu":
            return torch.device("cpu")
        return torch.device(mesh.device_type, getattr(torch, mesh.device_type).current_device())


def _place(meta: Any) -> tuple:
    storage = meta.untyped_storage()
    return storage._cdata, meta.storage_offset(), meta.dtype, tuple(meta.shape), meta.stride()


def _empty(
    dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], device: Any, fqn: str
) -> Any:
    import torch

    like = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    if device.type == "cpu" and like.is_contiguous():
        return new_tensor(dtype_code(dtype, fqn), shape)
    # Like torch, this keeps the strides if the memory has no holes.
    return torch.empty_like(like, device=device)
