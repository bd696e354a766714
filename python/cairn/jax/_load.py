"""Loading pytrees.

1. The leaves of the template are compared with the leaves of the step; nothing is read before all
   of them fit.
2. Each process reads the boxes that its devices need, each box once, in batches of bounded size.
3. The boxes become the shards of the new arrays; on a CPU without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np

from cairn import _cairn
from cairn._base import devices
from cairn._base.patterns import all_patterns, clean_prefix
from cairn._load.key_errors import Advice, missing_keys, no_key_of_state, unexpected_keys
from cairn._tensors.contents import Leaf, TensorLeaf, ValueLeaf, leaf_at, plain_value
from cairn._tensors.sources import address_of, row_major
from cairn._tensors.targets import check_same
from cairn.errors import Invalid, Refusals
from cairn.jax._leaves import (
    KEY_DATA,
    KEY_IMPL,
    box_of,
    code_of,
    dtype_of,
    flatten,
    fqn_of,
    is_kept,
    is_key,
    new_buffer,
)
from cairn.jax._save import StoreOrPath
from cairn.store import Store
from cairn.store import open as open_store

_BATCH_BYTES = 1 << 30
_ADVICE = Advice("pass", "load a part with prefix=, or use strict=False", renames=False)


def load(
    store: StoreOrPath,
    template: Any = None,
    step: int | str | None = None,
    *,
    strict: bool = True,
    prefix: str = "",
) -> Any:
    """Reads ``step`` (by default the latest) as a pytree like ``template``.

    Any mesh and sharding can load what any other one, or torch, has saved: each device gets its box
    of the array, and only that is read. Leaves of the template that are ``jax.Array`` or
    ``jax.ShapeDtypeStruct`` become arrays with the same shape, dtype and sharding; numpy arrays
    become numpy arrays; and other leaves become the plain value that the step has. The template
    itself is not changed. Arrays of a step without a sharding, and arrays of a template that are
    not committed to devices, are placed as ``jax.numpy`` places new arrays.

    Args:
        store: a store, or the address of one, which is opened for this call.
        template: the pytree; without it, the result is nested as the step is, with all arrays on
            the default device. Arrays of 64-bit dtypes then remain numpy arrays if JAX would
            convert them to 32 bits.
        strict: ``False`` ignores keys that only the step has, and keeps the leaves of the template
            that the step lacks.
        prefix: the prefix of the step's keys before the template's keys: ``"model"``.

    Raises:
        NotFound: the step does not exist, or (strict) lacks keys of the template.
        Invalid: dtypes, shapes or kinds differ; JAX would convert a 64-bit array to 32 bits; or
            (strict) the template lacks keys of the step.
        Corrupt: the bytes differ from the written bytes.
    """
    with nullcontext(store) if isinstance(store, Store) else open_store(store) as opened:
        native, number = opened.opened.place_of(step)
        prefix = clean_prefix(prefix)
        contents = native.contents(number, all_patterns([], prefix, []))
        reader = _Reader(native, contents)
        if template is None:
            leaves = [reader.add_default(leaf_at(contents, i)) for i in range(len(contents))]
            reader.read()
            # Tensor subclasses of torch remain dicts of their inner tensors.
            return contents.build([result() for result in leaves], lambda items, _: items)
        paths, structure = flatten(template)
        names = [f"{prefix}.{fqn_of(path)}" if prefix else fqn_of(path) for path, _ in paths]
        _check_keys(contents, names, [value for _, value in paths], strict)
        planned = []
        refusals = Refusals()
        for fqn, (_, value) in zip(names, paths):
            try:
                planned.append(reader.add(fqn, value))
            except Invalid as error:
                refusals.add(error)
        refusals.raise_all()
        reader.read()
        return jax.tree_util.tree_unflatten(structure, [result() for result in planned])


def _check_keys(
    contents: _cairn.Contents, names: list[str], values: list[Any], strict: bool
) -> None:
    needed = {name for fqn, value in zip(names, values) for name in _stored_names(fqn, value)}
    present = set(contents.fqns())
    missing = tuple(sorted(needed - present))
    if not strict:
        if missing and not needed & present:
            raise no_key_of_state(missing, contents, sorted(present - needed), _ADVICE)
        return
    if missing:
        raise missing_keys(missing, contents, (), _ADVICE)
    if unexpected := tuple(sorted(present - needed)):
        raise unexpected_keys(unexpected, contents.step, _ADVICE)


def _stored_names(fqn: str, value: Any) -> list[str]:
    if _has_dtype(value) and is_key(value.dtype):
        return [f"{fqn}.{KEY_DATA}", f"{fqn}.{KEY_IMPL}"]
    return [fqn]


def _has_dtype(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


class _Array:
    """An array of the result, whose boxes are read first.

    Args:
        code: the code of the dtype.
        sharding: None: the default device; "numpy": a numpy array.
    """

    def __init__(
        self, fqn: str, code: int, dtype: np.dtype, shape: tuple[int, ...], sharding: Any
    ) -> None:
        self._fqn, self._code, self._dtype, self._shape = fqn, code, dtype, shape
        self._sharding = sharding
        self._is_whole = sharding is None or sharding == "numpy"
        self._buffers: dict[_Box, np.ndarray] = {}
        self._made: Any = None

    @property
    def nbytes(self) -> int:
        return sum(int(np.prod(sizes)) for _, sizes in self._boxes()) * self._dtype.itemsize

    def request(self, requests: _cairn.Requests) -> None:
        """Allocates the boxes, and requests their contents."""
        for offsets, sizes in self._boxes():
            buffer = self._buffers[offsets, sizes] = new_buffer(self._dtype, sizes)
            if buffer.size > 0:
                target = self._code, row_major(sizes), address_of(buffer), devices.HOST
                requests.add(self._fqn, offsets, sizes, target)

    def make(self) -> None:
        """Makes the array of the boxes, which were read."""
        buffers, self._buffers = self._buffers, {}
        if self._is_whole:
            (buffer,) = buffers.values()
            self._made = jax.device_put(buffer) if self._sharding is None else buffer
            return
        # Much faster than one device_put per device.
        self._made = jax.make_array_from_callback(
            self._shape,
            self._sharding,
            lambda index: buffers[box_of(index, self._shape)],
            dtype=self._dtype,
        )

    def result(self) -> Any:
        return self._made

    def _boxes(self) -> list[_Box]:
        """The boxes that this process needs, without repetitions."""
        if self._is_whole:
            return [((0,) * len(self._shape), self._shape)]
        indices = self._sharding.addressable_devices_indices_map(self._shape)
        return list({box_of(index, self._shape): None for index in indices.values()})


_Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a part of an array, which one or more devices need."""

_Result = Callable[[], Any]
"""Returns a leaf of the result, after everything is read."""


class _Reader:
    """Plans the leaves of a load, and reads their arrays in batches."""

    def __init__(self, native: _cairn.Store, contents: _cairn.Contents) -> None:
        self._native = native
        self._contents = contents
        self._places = {fqn: index for index, fqn in enumerate(contents.fqns())}
        self._arrays: list[_Array] = []

    def add(self, fqn: str, value: Any) -> _Result:
        """Plans a leaf for a leaf of the template. Raises Invalid."""
        if any(name not in self._places for name in _stored_names(fqn, value)):
            return lambda: value
        if not _has_dtype(value):
            leaf = self._leaf(fqn)
            if not isinstance(leaf, ValueLeaf):
                raise self._mismatch(fqn, "an array", f"of type {type(value).__name__}")
            return self._plain(leaf)
        if is_key(value.dtype):
            return self._add_key(fqn, value)
        leaf = self._tensor_leaf(fqn)
        dtype, shape = np.dtype(value.dtype), tuple(value.shape)
        code = code_of(dtype, fqn)
        check_same(
            fqn,
            self._contents.step,
            (leaf.info.dtype, leaf.info.shape),
            (code, shape),
            "give the template the dtype and shape of the step",
        )
        is_numpy = isinstance(value, (np.ndarray, np.generic))
        if not is_numpy and not is_kept(dtype):
            raise Invalid(
                f"'{fqn}' is {dtype.name}, which JAX would convert to 32 bits: set jax_enable_x64, "
                "or use a numpy array in the template",
                key=fqn,
                step=self._contents.step,
            )
        return self._add_array(leaf, "numpy" if is_numpy else _sharding_of(value))

    def add_default(self, leaf: Leaf) -> _Result:
        """Plans a leaf without a template."""
        if isinstance(leaf, ValueLeaf):
            return self._plain(leaf)
        dtype = dtype_of(leaf.info.dtype)
        return self._add_array(leaf, None if dtype is not None and is_kept(dtype) else "numpy")

    def read(self) -> None:
        """Reads everything that was planned, and makes the arrays. Raises Corrupt."""
        for batch in self._batches():
            requests = _cairn.Requests()
            for array in batch:
                array.request(requests)
            if len(requests) > 0:
                devices.load(self._native, self._contents.info, requests, contents=self._contents)
            for array in batch:
                array.make()

    def _batches(self) -> Iterator[list[_Array]]:
        batch: list[_Array] = []
        size = 0
        for array in self._arrays:
            if batch and size + array.nbytes > _BATCH_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(array)
            size += array.nbytes
        if batch:
            yield batch

    def _plain(self, leaf: ValueLeaf) -> _Result:
        value = plain_value(leaf, self._contents.step, False)
        return lambda: value

    def _add_array(self, leaf: TensorLeaf, sharding: Any) -> _Result:
        dtype = dtype_of(leaf.info.dtype)
        if dtype is None:
            raise self._mismatch(leaf.fqn, "of a dtype that JAX lacks", "an array")
        info = leaf.info
        self._arrays.append(_Array(leaf.fqn, info.dtype, np.dtype(dtype), info.shape, sharding))
        return self._arrays[-1].result

    def _add_key(self, fqn: str, value: Any) -> _Result:
        data = self._tensor_leaf(f"{fqn}.{KEY_DATA}")
        implementation = self._leaf(f"{fqn}.{KEY_IMPL}")
        wanted = jax.random.key_impl(value) if isinstance(value, jax.Array) else None
        stored = implementation.value if isinstance(implementation, ValueLeaf) else None
        step = self._contents.step
        if not isinstance(stored, str) or (wanted is not None and stored != wanted):
            raise Invalid(
                f"'{fqn}' is a key of {stored!r} in step {step} but of {wanted!r} in the template",
                key=fqn,
                step=step,
            )
        if tuple(value.shape) != data.info.shape[:-1]:
            raise Invalid(
                f"'{fqn}' has keys of shape {list(data.info.shape[:-1])} in step {step} but "
                f"{list(value.shape)} in the template",
                key=fqn,
                step=step,
            )
        key_data, sharding = self._add_array(data, None), _sharding_of(value)

        def result() -> Any:
            key = jax.random.wrap_key_data(key_data(), impl=stored)
            return key if sharding is None else jax.device_put(key, sharding)

        return result

    def _leaf(self, fqn: str) -> Leaf:
        return leaf_at(self._contents, self._places[fqn])

    def _tensor_leaf(self, fqn: str) -> TensorLeaf:
        leaf = self._leaf(fqn)
        if not isinstance(leaf, TensorLeaf):
            raise self._mismatch(fqn, "a plain value", "an array")
        return leaf

    def _mismatch(self, fqn: str, stored: str, wanted: str) -> Invalid:
        step = self._contents.step
        return Invalid(
            f"'{fqn}' is {stored} in step {step} but {wanted} in the template", key=fqn, step=step
        )


def _sharding_of(value: Any) -> Any:
    """The sharding of an array or a ShapeDtypeStruct; None for the default device."""
    if isinstance(value, jax.Array) and not value.committed:
        return None
    return getattr(value, "sharding", None)
