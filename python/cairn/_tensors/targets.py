"""Memory of the caller as the target of a load: where bytes are written, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.devices import HOST, device_of
from cairn._ranks.sharded import arrived
from cairn._tensors.sources import (
    address_of,
    check_numpy,
    check_torch,
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
    strides = element_strides(array)
    if strides is not None:
        _check_overlap(array.shape, strides, fqn)
    if strides is not None and array.dtype.isnative:
        return Target(code, array.shape, strides, address_of(array), HOST, held(array), None, fqn)
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


def check_shape(
    fqn: str, step: int, stored: tuple[int, ...], given: tuple[int, ...]
) -> None:
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
