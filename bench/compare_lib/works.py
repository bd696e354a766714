"""The workloads: what is measured, and how each is set up, timed and checked in a child process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from compare_lib import page_cache
from compare_lib.child import Record
from compare_lib.memory import first_difference, make_ready, take_over, touch_pages
from compare_lib.meter import Meter
from compare_lib.peers.base import Peer, Reported, Slices, Steps, cut
from compare_lib.repeated import measure_small_saves, measure_stalls
from compare_lib.states import Ranges, State, Tensors, byte_view, total_bytes


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    method: str
    """Method of the peer."""
    limits: tuple[str, ...] = ()
    """Names of the limits; the workload is compared with the fastest of them."""
    other_limits: tuple[str, ...] = ()
    """Names of limits that are measured too, for targets."""
    cache: str | None = None
    """How the page cache is prepared: "evict", "warm", or None."""
    dim: int = 0
    """For slices: the sliced dimension."""
    every: int = 0
    """For keys and changes: every N-th key; 0 selects none, 1 selects all."""
    states: tuple[str, ...] = ("transformer", "experts", "embedding")
    runs_share: float = 1
    """Fraction of the repeats, for workloads that produce several figures per run."""

    def keys(self, state: State) -> list[str]:
        return state.every(self.every) if self.every > 1 else list(state.tensors) * self.every

    def impossible(self, state: State) -> str | None:
        """Returns why this workload is not applicable to this state, or None."""
        if self.every > 1 and not self.keys(state):
            return "one tensor only"
        return None

    def bytes_of(self, state: State) -> int:
        """Returns the bytes to which the rates refer."""
        if self.method == "load_slices":
            boxes = state.slices(self.dim)
            return total_bytes({key: _on_meta(state, key, box) for key, box in boxes.items()})
        if self.method in ("load_keys", *STALLS):
            return state.bytes_of(self.keys(state))
        return 0 if self.method in WITHOUT_TENSORS else state.nbytes

    def memory_of(self, state: State) -> int:
        """Returns how much memory a peer may need: tensors, page cache of its files, buffers."""
        if self.method in ("load_keys", "load_slices"):
            return 2 * self.bytes_of(state) + BUFFER_BYTES
        if self.method in WITHOUT_TENSORS:
            return BUFFER_BYTES
        if self.method not in ("save", "load_new", "load_existing"):
            return 0
        return (2 if self.method == "load_new" and self.cache == "evict" else 1) * state.nbytes

    def page_bytes(self, state: State) -> int | None:
        """For slices: the bytes of the digest pages that they overlap."""
        if self.method != "load_slices":
            return None
        boxes = state.slices(self.dim)
        return DIGEST_PAGE * sum(_pages(state.tensors[key], box) for key, box in boxes.items())


STALLS = ("save_async", "save_async_stated")
SAVING = ("save", "second_save", *STALLS, "small_saves", "dcp_saves_and_loads")
"""Methods that read the state; for loads, only limits read it."""
WITHOUT_TENSORS = ("open_metadata", "import_package")
BUFFER_BYTES = 256 << 20
DIGEST_PAGE = 1 << 16
"""Size of the pages of which Cairn stores digests."""
MEMCPY = ("memcpy 1 thread", "memcpy 2 threads")
WORKS = [
    Work("save", "durable full save", "save", ("fio",)),
    Work("load_cold", "cold full load, new tensors", "load_new", ("fio",), cache="evict"),
    Work("load_warm", "warm full load, new tensors", "load_new", MEMCPY, cache="warm",
         other_limits=("sum 2 threads",)),
    Work("load_existing", "cold full load, existing tensors", "load_existing", ("fio",),
         cache="evict"),
    Work("keys", "1 % of the keys, cold", "load_keys", cache="evict", every=100),
    Work("rows", "slice across rows, cold", "load_slices", cache="evict", dim=0),
    Work("columns", "slice across columns, cold", "load_slices", cache="evict", dim=1),
    Work("second_0", "second save, nothing changed", "second_save", ("sum 2 threads",)),
    Work("second_1", "second save, 1 % of the tensors changed", "second_save", every=100),
    Work("second_10", "second save, 10 % of the tensors changed", "second_save", every=10),
    Work("stall", "stall of save_async, all changed", "save_async", MEMCPY, every=1,
         runs_share=0.4),
    Work("stall_1", "stall of save_async, 1 % of the tensors changed", "save_async", MEMCPY,
         every=100, runs_share=0.4),
    Work("stall_stated", "stall of save_async, 1 % of the tensors changed, the others stated to be "
         "unchanged", "save_async_stated", MEMCPY, every=100, runs_share=0.4),
    Work("open", "open and read one key", "open_metadata", cache="evict", states=("metadata",)),
    Work("import", "import the library, warm", "import_package", states=("metadata",)),
    Work("ranks_save", "dcp.save of 4 ranks, durable", "ranks_save", states=("sharded",)),
    Work("ranks_load", "dcp.load of 4 ranks, cold", "ranks_load", cache="evict",
         states=("sharded",)),
    Work("small_saves", "one durable save of many", "small_saves", ("file operations",),
         states=("small",)),
    Work("small_dcp", "100 saves and loads through dcp, durable", "dcp_saves_and_loads",
         states=("small",)),
]  # fmt: skip


def _pages(matrix: torch.Tensor, box: Ranges) -> int:
    """Returns how many digest pages (counted from the matrix's start) the box overlaps."""
    (top, bottom), (left, right) = box
    item, row = matrix.element_size(), matrix.shape[1] * matrix.element_size()
    begins = np.arange(top, bottom) * row + left * item
    first, last = begins // DIGEST_PAGE, (begins + (right - left) * item - 1) // DIGEST_PAGE
    return int((last - first + 1).sum() - (first[1:] == last[:-1]).sum())


def _on_meta(state: State, key: str, box: Ranges) -> torch.Tensor:
    sizes = [end - begin for begin, end in box]
    return torch.empty(sizes, dtype=state.tensors[key].dtype, device="meta")


def _cut(state: State, boxes: Slices) -> Tensors:
    return {key: cut(state.tensors[key], box) for key, box in boxes.items()}


def _touched_targets(state: State) -> Tensors:
    targets = {key: torch.empty_like(tensor) for key, tensor in state.tensors.items()}
    for target in targets.values():
        byte_view(target)[:] = 0
    return targets


def _steps(work: Work, peer: Peer, state: State) -> tuple[Steps, Callable[[], Tensors] | None]:
    """Returns the peer's generator for this workload, and a function for the expected tensors."""
    method = getattr(peer, work.method)
    keys = work.keys(state)
    if work.method == "save":
        return method(state), None
    if work.method == "load_new":
        return method(state), lambda: state.tensors
    if work.method == "load_existing":
        targets = {} if peer.is_limit else _touched_targets(state)
        return method(state, targets), lambda: state.tensors
    if work.method == "load_keys":
        return method(state, keys), lambda: {key: state.tensors[key] for key in keys}
    if work.method == "load_slices":
        boxes = state.slices(work.dim)
        return method(state, boxes), lambda: _cut(state, boxes)
    if work.method == "second_save":
        state.change(keys)
        return method(state, keys), lambda: state.tensors
    if work.method == "open_metadata":
        return method(state.nbytes), None
    if work.method == "import_package":
        return method(), None
    return method(state), None  # the ranks check what they load themselves


def set_cache(work: Work, peer: Peer) -> dict[str, Any]:
    if work.cache == "warm":
        page_cache.warm(peer.directory)
    elif work.cache == "evict":
        left = page_cache.evict(peer.directory)
        if left != 0:
            return {"note": "unknown how much remained in the page cache" if left is None
                    else f"{left} bytes remained in the page cache"}  # fmt: skip
    return {}


def measure(work: Work, peer: Peer, state: State, check: bool) -> list[Record]:
    """Runs one measurement in a child process; `check` compares the result with the state."""
    if work.method in SAVING or peer.is_limit:
        take_over(state.tensors)
    if work.method in STALLS:
        return measure_stalls(getattr(peer, work.method), state, work.keys(state))
    if work.method == "small_saves":
        return measure_small_saves(peer.small_saves, state)
    steps, expected = _steps(work, peer, state)
    next(steps)
    loads = work.method.startswith("load") and not peer.is_limit
    make_ready(work.memory_of(state))
    meter = Meter()
    result = next(steps)
    if loads:
        touch_pages(result)
    spent = meter.stop()
    record = asdict(spent)
    if isinstance(result, Reported):
        record |= {name: value for name, value in asdict(result).items() if value is not None}
    elif loads and work.method != "load_existing":
        record["peak_bytes"] = max(0, spent.peak_bytes - total_bytes(result))
    if check and expected is not None and not peer.is_limit:
        result = result() if callable(result) else result
        wrong = first_difference(result, expected())
        if wrong is not None:
            return [{"error": f"loaded something else than was saved: {wrong}"}]
        record["checked"] = True
    next(steps, None)
    return [record]
