"""Saving pytrees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Union

from cairn._by_address import save_by_address
from cairn.jax._arrays import leaf_to_save
from cairn.jax._tree import flatten, fqn_of, nested
from cairn.store import SaveHandle, Store

if TYPE_CHECKING:
    from cairn.reports import SaveReport

StoreOrPath = Union[Store, str, "os.PathLike[str]"]


def save(store: StoreOrPath, step: int, tree: Any, **options: Any) -> SaveReport:
    """Writes a pytree as ``step``. When it returns, the step is complete and durable.

    Leaves are ``jax.Array`` with any sharding, PRNG keys, numpy arrays and scalars, and what
    :meth:`cairn.Store.save` accepts as a leaf. Their names are the keys of the tree, joined by
    dots: ``params.Dense_0.kernel``, ``opt_state.0.mu``. One of several equal shards is written. On
    a CPU, arrays are written from where they are; other devices are copied to host memory first.
    The step is an ordinary one: torch and ``kv-dump`` read it.

    In a store of several processes (:func:`cairn.jax.open`), all make the call, with the same tree.

    Args:
        store: a store, or the address of one, which is opened for this call.
        step: number of the step.
        tree: dicts, lists, tuples, named tuples, dataclasses and other registered classes.
        options: those of :meth:`cairn.Store.save`, such as ``metrics``, ``tags`` and ``tuning``.

    Raises:
        Conflict: the step exists.
        Invalid: a leaf cannot be saved (``key``), the tree is a single leaf, or processes disagree.
        Unavailable: no space or an I/O error; another process failed.
    """
    if isinstance(store, Store):
        return store.save(step, state_of(tree), **options)
    return save_by_address(store, step, state_of(tree), **options)


def save_async(store: Store, step: int, tree: Any, **options: Any) -> SaveHandle:
    """Copies a pytree into staging memory and writes it in the background.

    When it returns, the arrays may be donated or deleted. ``handle.result()`` waits until the step
    is durable. For arguments and errors, see :func:`save` and :meth:`cairn.Store.save_async`.
    """
    return store.save_async(step, state_of(tree), **options)


def state_of(tree: Any) -> Any:
    """The state that is saved in place of a pytree. Raises Invalid."""
    leaves, _ = flatten(tree)
    return nested([(path, leaf_to_save(value, fqn_of(path))) for path, value in leaves])
