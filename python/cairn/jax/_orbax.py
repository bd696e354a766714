"""Import of Orbax checkpoints, which Orbax itself reads.

Leaves are restored in groups of bounded size: all other leaves of the tree are placeholders, which
Orbax leaves out. Each leaf is written to the step at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cairn._base.patterns import clean_prefix
from cairn._open import open as open_store
from cairn._ranks.ranks import this_process
from cairn._by_address import check_save
from cairn._tensors.boxed import Box, BoxedTensor
from cairn.errors import Corrupt, Invalid, NotFound
from cairn.jax._arrays import code_of, portions
from cairn.jax._save import StoreOrPath
from cairn.jax._tree import fqn_of
from cairn.store import Store

if TYPE_CHECKING:
    from cairn.reports import SaveReport

_GROUP_BYTES = 256 << 20
_TIMEOUT = 1800.0  # of waits for other ranks, of which there are none
_METADATA = "_METADATA"


def import_orbax(
    path: str | os.PathLike[str],
    store: StoreOrPath,
    step: int,
    *,
    item: str | None = None,
    prefix: str = "",
    **options: Any,
) -> SaveReport:
    """Writes an Orbax checkpoint of a pytree as ``step`` of a store.

    Arrays become tensors, and other leaves plain values, with the names that
    :func:`cairn.jax.load` and torch use: ``params.Dense_0.kernel``. In memory are at most 256 MiB
    of arrays, or the largest one. The step exists once everything is written.

    Args:
        path: the folder of a ``StandardCheckpointer`` or ``PyTreeCheckpointer``, or of one step of
            a ``CheckpointManager``.
        store: a store of one process, or the address of one, which is opened for this call.
        step: number of the step.
        item: the item of the step of a ``CheckpointManager``; by default ``"default"``, if the
            folder is not itself a checkpoint.
        prefix: is prepended to each name.
        options: options of :meth:`cairn.Store.writer`, such as ``tags`` and ``overwrite``.

    Raises:
        NotFound: there is no checkpoint.
        Invalid: Orbax is not installed or cannot read the checkpoint, or a leaf cannot be saved.
        Conflict: the step exists.
        Corrupt: an array does not have the shape or dtype that the checkpoint states.
    """
    leaves = _Checkpoint(path, item)
    above = f"{clean_prefix(prefix)}." if prefix else ""
    if not isinstance(store, Store):  # which is created only for what can be saved
        small = {above + fqn: value for fqn, value in leaves.without_arrays()}
        check_save(store, this_process(_TIMEOUT), step, small, options)
    with nullcontext(store) if isinstance(store, Store) else open_store(store, "a") as opened:
        if opened.world_size > 1:
            raise Invalid("an import is made by one process: open the store with alone=True")
        with opened.writer(step, **options) as writer:
            for fqn, value in leaves:
                writer.add(above + fqn, value)
        report = writer.report
    assert report is not None
    return report


class _Checkpoint:
    """The leaves of a checkpoint, in groups."""

    def __init__(self, path: str | os.PathLike[str], item: str | None) -> None:
        try:
            import orbax.checkpoint as orbax
            from etils import epath
        except ImportError:
            raise Invalid("install orbax-checkpoint to import its checkpoints") from None
        self._orbax = orbax
        # Orbax reads nothing from a relative path.
        text = os.fspath(path)
        self._path = _find(epath.Path(text if "://" in text else os.path.abspath(text)), item)
        # A handler of the bare checkpoint, whatever wrote it.
        self._checkpointer = orbax.Checkpointer(orbax.PyTreeCheckpointHandler())
        with self._readable():
            found = self._checkpointer.metadata(self._path).item_metadata
        if found is None:
            raise Invalid(f"Orbax cannot read {self._path}: no metadata", file=str(self._path))
        paths, self._structure = jax.tree_util.tree_flatten_with_path(
            found.tree, is_leaf=lambda leaf: leaf is None or self._is_metadata(leaf)
        )
        self._names = [fqn_of(keys) for keys, _ in paths]
        self._leaves = [leaf for _, leaf in paths]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        indices = range(len(self._leaves))
        for group in portions(indices, self._nbytes, _GROUP_BYTES):
            restored = self._restore(group)
            for index in group:
                # Popped, so that a leaf is freed once it is written.
                yield self._names[index], self._checked(index, restored.pop(index))

    def without_arrays(self) -> Iterator[tuple[str, Any]]:
        """All leaves, with an array of one element in place of each array."""
        others = [index for index, leaf in enumerate(self._leaves) if not self._is_array(leaf)]
        values = self._restore(others) if others else {}
        for index, leaf in enumerate(self._leaves):
            name = self._names[index]
            if index in values:
                yield name, values[index]
            else:
                array = np.zeros((), np.dtype(leaf.dtype))
                yield name, BoxedTensor(code_of(array.dtype, name), (), [Box((), array)])

    def _restore(self, group: list[int]) -> dict[int, Any]:
        orbax = self._orbax
        present = [index for index in group if self._leaves[index] is not None]
        if not present:
            return dict.fromkeys(group)
        wanted = set(present)
        items = [
            leaf if leaf is None else (0 if index in wanted else orbax.PLACEHOLDER)
            for index, leaf in enumerate(self._leaves)
        ]
        arguments = [
            orbax.RestoreArgs(restore_type=np.ndarray if self._is_array(leaf) else None)
            for leaf in self._leaves
        ]
        with self._readable():
            tree = self._checkpointer.restore(
                self._path,
                args=orbax.args.PyTreeRestore(
                    item=jax.tree_util.tree_unflatten(self._structure, items),
                    restore_args=jax.tree_util.tree_unflatten(self._structure, arguments),
                ),
            )
        values = self._structure.flatten_up_to(tree)
        return {index: values[index] for index in group}

    def _checked(self, index: int, value: Any) -> Any:
        leaf, fqn = self._leaves[index], self._names[index]
        if not self._is_array(leaf):
            return value
        array = np.asarray(value)
        if array.shape != tuple(leaf.shape) or array.dtype != np.dtype(leaf.dtype):
            raise Corrupt(
                f"'{fqn}' is {leaf.dtype} {list(leaf.shape)} in the metadata of {self._path}, but "
                f"Orbax has restored {array.dtype} {list(array.shape)}",
                key=fqn,
                file=str(self._path),
            )
        return BoxedTensor(code_of(array.dtype, fqn), array.shape, [Box((0,) * array.ndim, array)])

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Converts the errors of Orbax."""
        path = str(self._path)
        try:
            yield
        except Exception as error:
            text = f"Orbax cannot read {path}: {type(error).__name__}: {error}"
            raise Invalid(text, file=path) from error

    def _is_metadata(self, leaf: Any) -> bool:
        return isinstance(leaf, self._orbax.metadata.value.Metadata)

    def _is_array(self, leaf: Any) -> bool:
        metadata = self._orbax.metadata.value
        is_scalar = isinstance(leaf, metadata.ScalarMetadata)
        return isinstance(leaf, metadata.ArrayMetadata) and not is_scalar

    def _nbytes(self, index: int) -> int:
        leaf = self._leaves[index]
        if not self._is_array(leaf):
            return 0
        return int(np.prod(leaf.shape, dtype=np.int64)) * np.dtype(leaf.dtype).itemsize


def _find(path: Any, item: str | None) -> Any:
    """The folder of the checkpoint. Raises NotFound."""
    places = [path / item] if item else [path, path / "default"]
    for place in places:
        if (place / _METADATA).exists():
            return place
    raise NotFound(
        f"{places[-1]} has no {_METADATA}: name the folder of a pytree checkpoint of Orbax, or "
        "that of one step of a CheckpointManager and the item",
        file=str(places[-1]),
    )
