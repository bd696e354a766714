"""Agreement between the ranks of a training job on what to do at a step."""

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
    """The status of one rank, or the combined status of all ranks.

    Attributes:
        signal: number of a signal that at least one rank has received; 0 for none.
        saving: True if the last save is still running on at least one rank.
    """

    signal: int
    saving: bool


class Agreement:
    """Combines the status of all ranks that have a store open; possibly only of this process.

    The ranks use a separate Gloo group, so that an agreement neither waits for a GPU nor interferes
    with the collectives of the training or with a running save. An agreement is one all-reduce of
    four integers in host memory. All ranks create, use and close the object at the same points of
    the program.

    Args:
        group: the process group that the store was opened with, if it is not the default group.
            This group is then used itself, and must support reductions in host memory.

    Raises:
        Invalid: the process group and the store have different numbers of ranks.
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
            # No rank may continue, and possibly close, while another is still connecting.
            dist.barrier(self._group)

    def agree_on(self, step: int, local: JobStatus) -> JobStatus:
        """Combines the local status of all ranks. Collective.

        Raises:
            Invalid: the ranks are at different steps.
            Unavailable: a rank has died, or did not call in time.
        """
        if self._group is None:
            return local
        begin = time.perf_counter()
        fields = torch.tensor([local.signal, int(local.saving), step, -step])
        try:
            dist.all_reduce(fields, dist.ReduceOp.MAX, self._group)
        except RuntimeError as error:
            raise Unavailable(
                f"step {step}: a rank has died, or did not reach it in time ({error})", step=step
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
        """Destroys the group, if it was created here. May be called again."""
        if self._made and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._made = False
        self._group = None
