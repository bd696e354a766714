"""Cairn in Ray Train: checkpoints that refer to a store and a step.

    from cairn.trainers.ray import load_checkpoint, save_checkpoint

    def train_func(config):
        with cairn.open(config["store"], mode="a") as store:
            checkpoint = ray.train.get_checkpoint()
            if checkpoint is not None:
                step = load_checkpoint(checkpoint, state, store=store)
            ...
            ray.train.report(metrics, checkpoint=save_checkpoint(store, step, state))
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ray.train import Checkpoint

from cairn._base.addresses import canonical_address
from cairn.store import Store
from cairn.store import open as open_store
from cairn.trainers._pointers import Pointer, read_pointer, write_pointer

POINTER = "cairn.json"


def save_checkpoint(store: Store, step: int, state: Any, **options: Any) -> Checkpoint | None:
    """Saves a step, and returns a checkpoint that refers to it. Collective.

    The checkpoint is a directory with a file of about 100 bytes, which Ray copies to its storage.
    It is created after the step is durable. All workers that Ray may start must be able to open the
    store by its address: a directory that they share, or a bucket.

    Args:
        store: open for writing on all workers.
        options: as in :meth:`cairn.Store.save`; by default, a step that exists is replaced, because
            a worker group that was restarted may save it again.

    Returns:
        On rank 0, the checkpoint for ``ray.train.report``; on other ranks None, as
        ``ray.train.report`` accepts it.

    Raises what :meth:`cairn.Store.save` raises. Threads: as for that method.
    """
    store.save(step, state, **{"overwrite": True, **options})
    if store.rank > 0:
        return None
    folder = tempfile.mkdtemp(prefix="cairn-checkpoint-")
    write_pointer(Path(folder) / POINTER, Pointer(store.address, step), is_copied=True)
    return Checkpoint.from_directory(folder)


def load_checkpoint(
    checkpoint: Checkpoint, state: Any, *, store: Store | None = None, **options: Any
) -> int:
    """Fills a state from the step that a checkpoint refers to, as :meth:`cairn.Store.load` does.
    Collective in a worker group.

    Args:
        store: the store, if it is already open; otherwise it is opened for this call.
        options: as in :meth:`cairn.Store.load`.

    Returns:
        The number of the step.

    Raises NotFound or Invalid if the checkpoint was not made by :func:`save_checkpoint`, and what
    :meth:`cairn.Store.load` raises. Threads: as for that method.
    """
    address, step = locate_checkpoint(checkpoint)
    if store is not None and canonical_address(store.address) == canonical_address(address):
        store.load(state, step, **options)
        return step
    with open_store(address) as opened:
        opened.load(state, step, **options)
    return step


def locate_checkpoint(checkpoint: Checkpoint) -> tuple[str, int]:
    """The address of the store and the step that a checkpoint refers to, for :func:`cairn.open`.

    Raises NotFound or Invalid if it was not made by :func:`save_checkpoint`. Threads: any.
    """
    with checkpoint.as_directory() as folder:
        pointer = read_pointer(os.path.join(folder, POINTER))
    return pointer.store, pointer.step
