"""Opening a store in all processes of a JAX job, and saving pytrees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Union

import jax
import numpy as np

from cairn._by_address import save_by_address
from cairn._ranks.ranks import Ranks, connect_ranks
from cairn.jax._leaves import flatten, fqn_of, leaf_to_save, nested
from cairn.store import SaveHandle, Store
from cairn.store import open as open_store

if TYPE_CHECKING:
    from cairn.reports import SaveReport

StoreOrPath = Union[Store, str, "os.PathLike[str]"]


def open(
    address: str | os.PathLike[str], mode: str = "r", *, timeout: float = 1800.0, **options: Any
) -> Store:
    """Opens a store in all processes that ``jax.distributed.initialize`` has connected.

    Every process makes the call; afterwards all of them make the calls of :func:`save` and
    :func:`save_async` together. The processes of JAX exchange the addresses at which they connect,
    and nothing else. With one process it is :func:`cairn.open`, whose arguments and errors it has.
    """
    if jax.process_count() == 1:
        return open_store(address, mode, timeout=timeout, **options)
    rank, world_size = jax.process_index(), jax.process_count()
    communicator = connect_ranks(rank, world_size, _all_gather, "", timeout)
    group: Any = Ranks(communicator, {}, None, timeout)
    return open_store(address, mode, group, timeout=timeout, **options)


def _all_gather(message: bytes) -> list[bytes]:
    """The messages of all processes, in their order."""
    from jax.experimental import multihost_utils

    lengths = multihost_utils.process_allgather(np.array([len(message)], np.int32))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: len(message)] = np.frombuffer(message, np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row[:length].tobytes() for row, length in zip(rows, lengths.reshape(-1))]


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
