"""Reading into new tensors: allocation, shared memory, mapped memory.

Tensors that shared memory when they were saved share it again: the owner of the bytes is read, and
its aliases become views of its storage. An owner that is not a leaf of the state is allocated, but
is not part of the result. If only some of the tensors that share memory are selected, the bytes of
the others are not read.

The C++ side creates torch tensors in host memory that share nothing (python/src/new_tensors.cc);
this module creates all other leaves.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cairn import _cairn
from cairn._base import devices, dtypes
from cairn._base.tree import NUMPY_SCALAR, TENSOR
from cairn._tensors.contents import TensorLeaf, ValueLeaf, leaf_at, plain_values
from cairn._tensors.sources import address_of, row_major
from cairn._tensors.targets import new_array, new_tensor
from cairn.errors import Unavailable

if TYPE_CHECKING:
    import numpy as np


class Reader:
    """Reads the leaves of a step into new tensors, arrays and values. For a single use."""

    def __init__(
        self,
        native: _cairn.Store,
        contents: _cairn.Contents,
        *,
        device: Any,
        mmap: bool,
        verify: bool | str,
    ) -> None:
        self._native = native
        self._contents = contents
        self._device = device
        stays_on_host = mmap or contents.is_converted
        self._reads_on_device = not stays_on_host and devices.is_reached(device)
        self._mmap = mmap
        self._verify = verify
        self._requests = _cairn.Requests()
        self._holders: dict[tuple, _cairn.TensorInfo] = {}
        """The tensor that is allocated for a place (TensorInfo.place): the owner, or the tensor
        itself."""
        self._memory: dict[str, Any] = {}
        """Contiguous torch tensors and numpy arrays, by FQN of the holder. They are in host memory,
        except for torch tensors that are read directly into device memory."""
        self._mapped: set[str] = set()
        """FQNs of the holders that are mapped segments."""
        self._moved: dict[str, Any] = {}
        """Copies on the device of the holders that are torch tensors."""
        self._made: dict[tuple, Any] = {}
        """Results by kind and place, so that one tensor with two names remains one tensor."""
        self.checks: list[_cairn.MapCheck] = []
        """With verify="lazy", the checks of what was mapped, which the caller runs."""

    def read(self, allow_pickle: bool) -> list[Any]:
        """The contents of the leaves, in tree order."""
        contents = self._contents
        results: list[Any] = []
        new: _cairn.NewTensors | None = None
        if self._mmap:
            results, check = self._native.map_new_tensors(contents)
            if check is not None:
                self._check(check)
        else:
            with self._memory_for(None):
                if self._reads_on_device:
                    make = _cairn.request_new_device_tensors
                    results = make(contents, self._requests, self._device)
                else:
                    new = _cairn.request_new_tensors(contents, self._requests)
        others = new.others() if new else [i for i, made in enumerate(results) if made is None]
        leaves = [leaf_at(contents, i) for i in others]
        value_leaves = [leaf for leaf in leaves if isinstance(leaf, ValueLeaf)]
        # First, because it may raise.
        plain = plain_values(value_leaves, contents.step, allow_pickle)
        values = {leaf.fqn: value for leaf, value in zip(value_leaves, plain)}
        tensors = [leaf for leaf in leaves if isinstance(leaf, TensorLeaf)]
        self._assign_holders(tensors)
        needed = self._needed_memory(tensors)
        if self._mmap and needed:
            self._map(needed)
        for info, kinds in needed:
            if info.fqn not in self._mapped:
                with self._memory_for(info):
                    self._allocate(info, kinds)
        if len(self._requests) > 0:
            devices.load(self._native, contents.info, self._requests, contents=contents)
        self._requests = _cairn.Requests()  # the tensors reuse the memory of the requests
        if new is not None:
            with self._memory_for(None):
                results = new.make(contents)
        self._move()
        if self._device is not None and not self._reads_on_device:
            results = [made if made is None else made.to(self._device) for made in results]
        for i, leaf in zip(others, leaves):
            results[i] = self._result(leaf) if isinstance(leaf, TensorLeaf) else values[leaf.fqn]
        return results

    def _assign_holders(self, tensors: list[TensorLeaf]) -> None:
        """Chooses for each place between the memory of its owner and separate memory."""
        places = {leaf.info.place for leaf in tensors}
        sharers = Counter(owner for owner, *_ in places)
        selected = {leaf.fqn for leaf in tensors}
        for leaf in tensors:
            info, place = leaf.info, leaf.info.place
            # An owner that is not a leaf is only worth reading if two tensors share its bytes.
            owner = self._contents.find_tensor(place[0])
            # One that repeats the elements of its owner is longer than it.
            is_part = owner is not None and info.nbytes <= owner.nbytes
            if is_part and owner.fqn not in selected and sharers[owner.fqn] < 2:
                owner = None
            # torch expresses the offset of a view in elements.
            aligned = info.alias_offset_bytes % dtypes.item_bytes(info.dtype) == 0
            self._holders.setdefault(place, owner if owner is not None and aligned else info)

    def _needed_memory(self, tensors: list[TensorLeaf]) -> list[tuple[_cairn.TensorInfo, set[int]]]:
        """The holders, each with the kinds of leaves in its memory."""
        kinds: dict[str, set[int]] = {}
        for leaf in tensors:
            kinds.setdefault(self._holders[leaf.info.place].fqn, set()).add(leaf.kind)
        return [(self._contents.find_tensor(fqn), inside) for fqn, inside in kinds.items()]

    def _map(self, needed: list[tuple[_cairn.TensorInfo, set[int]]]) -> None:
        """Maps all tensors that can be mapped, in one call."""
        needed = [(info, kinds) for info, kinds in needed if info.nbytes > 0]
        mapped, check = self._native.map(self._contents.info, [info for info, _ in needed])
        self._check(check)
        for (info, kinds), memory in zip(needed, mapped):
            if memory is not None:
                self._memory[info.fqn] = _mapped_view(memory, info, TENSOR in kinds)
                self._mapped.add(info.fqn)

    def _check(self, check: _cairn.MapCheck) -> None:
        if self._verify == "lazy":
            self.checks.append(check)
        elif self._verify:
            check.run()

    @contextlib.contextmanager
    def _memory_for(self, info: _cairn.TensorInfo | None) -> Iterator[None]:
        """Raises Corrupt if memory cannot be allocated because a record states a wrong length, and
        otherwise Unavailable. The tensor is not known if many are allocated together."""
        try:
            yield
        except (MemoryError, ValueError, RuntimeError) as error:
            leaves = (leaf_at(self._contents, i) for i in range(len(self._contents)))
            infos = [leaf.info for leaf in leaves if isinstance(leaf, TensorLeaf)]
            largest = info or max(infos, key=lambda each: each.nbytes)
            for each in [largest, *infos]:
                self._native.check_chunks(self._contents.info, each.fqn)
            raise Unavailable(
                f"there is not enough memory for '{largest.fqn}' ({largest.nbytes:,} bytes): read "
                "fewer keys, or load parts into existing tensors",
                key=largest.fqn,
                step=self._contents.step,
            ) from error

    def _allocate(self, info: _cairn.TensorInfo, kinds: set[int]) -> None:
        """Allocates memory for a complete tensor, and requests its contents."""
        # Memory that numpy arrays share is read into host memory, and copied to the device later.
        on_device = self._reads_on_device and kinds == {TENSOR}
        device = self._device if on_device else None
        self._memory[info.fqn] = request_new(self._requests, info, TENSOR in kinds, device)

    def _move(self) -> None:
        if self._device is None:
            return
        for fqn, memory in self._memory.items():
            if not dtypes.is_array(memory) and memory.device.type == "cpu":
                self._moved[fqn] = memory.to(self._device)

    def _result(self, leaf: TensorLeaf) -> Any:
        place = leaf.info.place
        key = (leaf.kind, place)
        if key not in self._made:
            holder = self._holders[place]
            is_whole = place == holder.place
            memory = self._memory[holder.fqn]
            if leaf.kind == TENSOR:
                memory = self._moved.get(holder.fqn, memory)
                self._made[key] = memory if is_whole else _torch_view(memory, leaf.info)
            elif is_whole and dtypes.is_array(memory):
                self._made[key] = memory
            else:
                array = _numpy_view(memory, leaf.info, is_whole)
                if holder.fqn in self._mapped:
                    array.flags.writeable = False
                self._made[key] = array
        return self._made[key][()] if leaf.kind == NUMPY_SCALAR else self._made[key]


def request_new(
    requests: _cairn.Requests, info: _cairn.TensorInfo, is_torch: bool, device: Any
) -> Any:
    """Requests a complete tensor into a new torch tensor or numpy array, which it returns.
    ``device``: one that C++ reaches, or None for host memory."""
    place = devices.HOST
    if is_torch:
        memory = new_tensor(info.dtype, info.shape, device)
        address = memory.data_ptr()
        place = place if device is None else memory.device.index
    else:
        memory = new_array(info.dtype, info.shape)
        address = address_of(memory)
    target = (info.dtype, row_major(info.shape), address, place)
    requests.add(info.fqn, None, info.shape, target)
    return memory


def _mapped_view(mapped: _cairn.Mapped, info: _cairn.TensorInfo, needs_torch: bool) -> Any:
    """A complete mapped tensor, as a torch tensor or a numpy array."""
    if needs_torch:
        dtype = dtypes.torch_dtype(info.dtype)  # imports torch
        return mapped.torch_bytes().view(dtype).view(info.shape)
    return mapped.numpy_bytes().view(dtypes.numpy_dtype(info.dtype)).reshape(info.shape)


def _torch_view(owner: Any, info: _cairn.TensorInfo) -> Any:
    """An alias in the memory of its owner, which is a contiguous torch tensor."""
    torch = dtypes.require_torch()
    offset = info.alias_offset_bytes // dtypes.item_bytes(info.dtype)
    view = torch.empty(0, dtype=dtypes.torch_dtype(info.dtype), device=owner.device)
    return view.set_(owner.untyped_storage(), offset, info.shape, info.alias_strides)


def _numpy_view(owner: Any, info: _cairn.TensorInfo, is_whole: bool) -> np.ndarray:
    """All of the contiguous memory of a torch tensor or numpy array, or an alias in it."""
    import numpy as np

    if not isinstance(owner, np.ndarray):
        torch = dtypes.require_torch()
        owner = owner.reshape(-1).view(torch.uint8).numpy()
    dtype = dtypes.numpy_dtype(info.dtype)
    offset_bytes = 0 if is_whole else info.alias_offset_bytes
    strides = row_major(info.shape) if is_whole else info.alias_strides
    memory = owner.reshape(-1).view(np.uint8)
    return np.ndarray(
        info.shape, dtype, memory, offset_bytes, [stride * dtype.itemsize for stride in strides]
    )
