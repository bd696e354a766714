"""What the ranks of a training job have to agree on, step by step."""

from __future__ import annotations

import datetime
import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from cairn._ranks.ranks import default_group
from cairn.errors import Invalid, Unavailable
from cairn.store import Store


class JobStatus(NamedTuple):
    """The same on every rank.

    Attributes:
        signal: number of a signal that came to one rank at least; 0 for none.
        saving: True if the last save still runs on one rank at least.
    """

    signal: int
    saving: bool


class Agreement:
    """The ranks that have a store open together, asking each other; or this process alone.

    They have a Gloo group of their own, so that asking neither waits for a GPU nor gets in the way
    of the training's collectives or of a save that runs: one all-reduce of four integers in host
    memory. All ranks make the agreement, ask, and close it at the same points of the program.

    Args:
        group: the process group that the store was opened with, if that is not the default one; it
            is asked itself then, and must be able to reduce tensors in host memory.

    Raises:
        Invalid: the process group has not as many ranks as the store.
    """

    def __init__(self, store: Store, group: Any = None) -> None:
        self.seconds = 0.0
        self._group: Any = None
        self._made = False
        if store.world_size == 1:
            return
        asked = default_group() if group is None else group
        size = 0 if asked is None else dist.get_world_size(asked)
        if size != store.world_size:
            raise Invalid(
                f"the store is open on {store.world_size} ranks, and the process group has {size}: "
                "give the Saver the process_group that the store was opened with"
            )
        self._group, self._made = group, group is None
        if self._made:
            timeout = datetime.timedelta(seconds=store.timeout)
            self._group = dist.new_group(backend="gloo", timeout=timeout)
            # Nobody goes on, and perhaps closes, while another is still connecting.
            dist.barrier(self._group)

    def agree_on(self, step: int, local: JobStatus) -> JobStatus:
        """The verdict of all ranks, of their own ones.

        Raises:
            Invalid: the ranks are at different steps.
            Unavailable: a rank is gone, or did not ask in time.
        """
        if self._group is None:
            return local
        begin = time.perf_counter()
        fields = torch.tensor([local.signal, int(local.saving), step, -step])
        try:
            dist.all_reduce(fields, dist.ReduceOp.MAX, self._group)
        except RuntimeError as error:
            raise Unavailable(
                f"step {step}: a rank is gone, or did not come to it in time ({error})", step=step
            ) from error
        self.seconds += time.perf_counter() - begin
        number, saving, highest, lowest = fields.tolist()
        if highest != -lowest:
            raise Invalid(
                f"step {step}: other ranks are at steps {-lowest} to {highest}; each must call the "
                "Saver at the same steps",
                step=step,
            )
        return JobStatus(number, bool(saving))

    def close(self) -> None:
        """Gives the group back, if it was made here. May be called again."""
        if self._made and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._made = False
        self._group = None
