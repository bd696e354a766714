"""Opening a store in all processes of a JAX job."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from cairn._open import open as open_store
from cairn._ranks.ranks import Ranks, connect_ranks
from cairn.store import Store


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
