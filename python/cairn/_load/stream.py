"""Streaming: the tensors of a step in the order of their bytes in the files.

Tensors are read in batches. While the caller works with the tensors of one batch, a thread reads
the next one. A batch that turns out to be damaged is read once more, tensor by tensor, so that
those before the damaged one are yielded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from cairn import _cairn
from cairn._base import devices
from cairn._base.patterns import Patterns, pattern_list
from cairn._base.tree import NUMPY_SCALAR, TENSOR
from cairn._load.contents import contents_of
from cairn._load.read import request_new
from cairn._opened.opened import Opened
from cairn._tensors.contents import TensorLeaf, leaf_at
from cairn.errors import Corrupt, Invalid, Unavailable


def stream(
    opened: Opened, step: int | str | None, patterns: Patterns, device: Any, read_ahead_bytes: int
) -> Iterator[tuple[str, Any]]:
    """See `Store.stream`. Raises what can be known before the iteration begins."""
    if read_ahead_bytes < 0:
        raise Invalid(f"read_ahead_bytes={read_ahead_bytes}: it may not be negative")
    native, step = opened.place_of(step)
    contents = contents_of(native, step, pattern_list(patterns))
    return _tensors(native, contents, device, read_ahead_bytes)


def _tensors(
    native: _cairn.Store, contents: _cairn.Contents, device: Any, read_ahead_bytes: int
) -> Iterator[tuple[str, Any]]:
    batches = _batches(native, contents, read_ahead_bytes)
    sizes = [sum(leaf.info.nbytes for leaf in leaves) for leaves in batches]
    pid = os.getpid()
    with ThreadPoolExecutor(1, "cairn-stream") as thread:

        def begin(leaves: list[TensorLeaf]) -> _Read:
            return _Read(thread, native, contents, leaves, device)

        ahead: _Read | None = None
        for following, (leaves, rest) in enumerate(zip(batches, sizes), 1):
            current, ahead = ahead or begin(leaves), None
            for fqn, tensor, nbytes in _results(leaves, current, begin):
                rest -= nbytes
                if following < len(batches) and ahead is None:
                    if rest == 0 or rest + sizes[following] <= read_ahead_bytes:
                        ahead = begin(batches[following])
                # Nothing here may keep the tensor alive while the caller works with it.
                pair = [(fqn, tensor)]
                del tensor
                yield pair.pop()
                if os.getpid() != pid:  # the thread is in the parent
                    raise Invalid("a stream ends at a fork: begin another one in the child")


def _batches(
    native: _cairn.Store, contents: _cairn.Contents, read_ahead_bytes: int
) -> list[list[TensorLeaf]]:
    """All tensors in file order, in batches of neighbours, of which two fit into the read-ahead."""
    batches: list[list[TensorLeaf]] = []
    nbytes = 0
    for index in native.file_order(contents):
        leaf = leaf_at(contents, index)
        assert isinstance(leaf, TensorLeaf)
        if not batches or nbytes + leaf.info.nbytes > read_ahead_bytes // 2:
            batches.append([])
            nbytes = 0
        batches[-1].append(leaf)
        nbytes += leaf.info.nbytes
    return batches


def _results(
    leaves: list[TensorLeaf], read: _Read, begin: Callable[[list[TensorLeaf]], _Read]
) -> Iterator[tuple[str, Any, int]]:
    """Name, tensor and length of each leaf of a batch that `read` reads."""
    is_damaged = False
    try:
        read.wait()
    except Corrupt:
        if len(leaves) == 1:
            raise
        is_damaged = True
    for place, leaf in enumerate(leaves):
        if is_damaged:
            read, place = begin([leaf]), 0
            read.wait()
        yield leaf.fqn, read.take(place), leaf.info.nbytes


class _Read:
    """The read of one batch into new memory, which runs on `thread`.

    The memory is allocated by the thread that creates the object, and device memory is filled in
    the order of that thread's current streams.
    """

    def __init__(
        self,
        thread: ThreadPoolExecutor,
        native: _cairn.Store,
        contents: _cairn.Contents,
        leaves: list[TensorLeaf],
        device: Any,
    ) -> None:
        self._native = native
        self._contents = contents
        self._device = device
        self._leaves = leaves
        self._requests = _cairn.Requests()
        self._memory = [self._allocate(leaf) for leaf in leaves]
        self._streams = devices.current_streams(self._requests.devices())
        self._ended: Future[None] | None = None
        try:
            self._ended = thread.submit(self._run)
        except RuntimeError:  # no thread can start, for example because Python is shutting down
            pass

    def wait(self) -> None:
        """Waits until nothing is read any more, and raises what the read has raised. Ctrl-C ends
        the wait."""
        if self._ended is None:
            self._run()
        else:
            self._ended.result()

    def take(self, place: int) -> Any:
        """The tensor of a leaf, which this object does not keep."""
        memory, self._memory[place] = self._memory[place], None
        if self._leaves[place].kind == NUMPY_SCALAR:
            return memory[()]
        if self._leaves[place].kind == TENSOR and self._device is not None:
            return memory.to(self._device)
        return memory

    def _run(self) -> None:
        self._native.load(
            self._contents.info, self._requests, self._streams, contents=self._contents
        )

    def _allocate(self, leaf: TensorLeaf) -> Any:
        info, device = leaf.info, self._device if devices.is_reached(self._device) else None
        try:
            return request_new(self._requests, info, leaf.kind == TENSOR, device)
        except (MemoryError, ValueError, RuntimeError) as error:
            # Raises Corrupt if the record of the tensor states a wrong length.
            self._native.check_chunks(self._contents.info, info.fqn)
            raise Unavailable(
                f"there is not enough memory for '{info.fqn}' ({info.nbytes:,} bytes): use a "
                "smaller read_ahead_bytes, or read a part with read_slice()",
                key=info.fqn,
                step=self._contents.step,
            ) from error
