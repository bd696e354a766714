"""Waiting for all ranks of a process group, with a deadline and the names of the missing ones.

Collectives of a process group wait for its own timeout, half an hour by default, and do not name a
rank. The key-value store of the group, through which its ranks have found each other, has
deadlines.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from cairn.errors import Unavailable

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_calls: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The number of calls for each group, which is the same on all ranks."""

_VERDICT_SECONDS = 5.0
"""How much longer than rank 0 the others wait, so that they learn whom it missed."""


class Notes:
    """What the first rank that leaves the others tells them, in the store of the process group:
    connections that close state no cause."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def leave(self, rank: int, why: str) -> None:
        if self.find(0.1) is None:
            with suppress(RuntimeError):  # torch's errors of stores are derived from it
                self._store.set("left", f"rank {rank} has left: {why}")

    def find(self, seconds: float = 2.0) -> str | None:
        """What a rank has stated, or states within this time. A rank that has died never does."""
        from datetime import timedelta

        with suppress(RuntimeError):
            self._store.wait(["left"], timedelta(seconds=seconds))
            return self._store.get("left").decode()
        return None


def await_all_ranks(group: ProcessGroup, timeout: float) -> Notes | None:
    """Returns when all ranks of the group have called it. Collective.

    Raises Unavailable on all ranks, late ones included, if a rank does not call it within `timeout`
    seconds of rank 0's call; the error names these ranks.
    """
    from datetime import timedelta

    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    store_of = getattr(distributed_c10d, "_get_process_group_store", None)
    if store_of is None:  # a version of torch without it: the collectives of the group wait
        return None
    import json

    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    number = _calls.get(group, 0)
    _calls[group] = number + 1
    store = dist.PrefixStore(f"cairn/arrival/{number}", store_of(group))
    try:  # torch's errors of stores are derived from RuntimeError
        if rank == 0:
            missing = _missing_ranks(store, range(1, world_size), timeout)
            store.set("verdict", json.dumps(missing))
        else:
            store.set(f"rank{rank}", "")
            try:
                store.wait(["verdict"], timedelta(seconds=timeout + _VERDICT_SECONDS))
                missing = json.loads(store.get("verdict"))
            except RuntimeError:
                missing = [0]
    except RuntimeError as error:
        raise Unavailable(
            f"rank {rank} cannot reach the other ranks by the store of their process group: {error}"
        ) from error
    if missing:
        raise Unavailable(
            f"{named_ranks(missing)} did not open the store within {timeout:g} s: see whether it "
            "has ended, or open the store with a larger timeout="
        )
    return Notes(store)


def _missing_ranks(store: Any, ranks: range, timeout: float) -> list[int]:
    from datetime import timedelta

    keys = [f"rank{rank}" for rank in ranks]
    try:
        store.wait(keys, timedelta(seconds=timeout))
        return []
    except RuntimeError:
        return [rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key])]


def named_ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} others" if len(ranks) > 8 else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
