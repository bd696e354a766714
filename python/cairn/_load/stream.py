"""Streaming: the tensors of a step in the order of their bytes in the files.

Tensors are read in batches. While the caller works with the tensors of one batch, a thread reads
the next one; each batch has a new thread, so that nothing waits for a caller that has stopped. A
batch that turns out to be damaged is read once more, tensor by tensor, so that those before the
damaged one are yielded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from cairn import _cairn
from cairn._base import devices
from cairn._base.patterns import Patterns, pattern_list
from cairn._base.tree import NUMPY_SCALAR, TENSOR
from cairn._load.contents import contents_of
from cairn._load.read import is_reached, request_new
from cairn._opened.opened import Opened
from cairn._tensors.contents import TensorLeaf, leaf_at
from cairn.errors import Corrupt, Invalid, Unavailable


class _Batch(NamedTuple):
    """Neighbouring tensors that are read together."""

    leaves: list[TensorLeaf]
    nbytes: int


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
    ahead = _Read(native, contents, batches[0], device) if batches else None
    try:
        for index, batch in enumerate(batches):
            current, ahead = ahead, None
            following = batches[index + 1] if index + 1 < len(batches) else None
            rest = batch.nbytes
            for fqn, tensor, nbytes in _results(native, contents, batch, current, device):
                rest -= nbytes
                if following is not None and (
                    rest == 0 or rest + following.nbytes <= read_ahead_bytes
                ):
                    ahead, following = _Read(native, contents, following, device), None
                # Nothing here may keep the tensor alive while the caller works with it.
                pair = [(fqn, tensor)]
                del tensor
                yield pair.pop()
            current = None
            if following is not None:
                ahead = _Read(native, contents, following, device)
    finally:
        if ahead is not None:
            ahead.wait()


def _batches(
    native: _cairn.Store, contents: _cairn.Contents, read_ahead_bytes: int
) -> list[_Batch]:
    """All tensors in file order, in batches of which two fit into the read-ahead."""
    batches: list[_Batch] = []
    leaves: list[TensorLeaf] = []
    nbytes = 0
    for index in native.file_order(contents):
        leaf = leaf_at(contents, index)
        assert isinstance(leaf, TensorLeaf)
        if leaves and nbytes + leaf.info.nbytes > read_ahead_bytes // 2:
            batches.append(_Batch(leaves, nbytes))
            leaves, nbytes = [], 0
        leaves.append(leaf)
        nbytes += leaf.info.nbytes
    return batches + ([_Batch(leaves, nbytes)] if leaves else [])


def _results(
    native: _cairn.Store,
    contents: _cairn.Contents,
    batch: _Batch,
    read: _Read | None,
    device: Any,
) -> Iterator[tuple[str, Any, int]]:
    """Name, tensor and length of each leaf of a batch that `read` reads."""
    assert read is not None
    damaged = False
    try:
        read.wait()
        read.raise_error()
    except Corrupt:
        if len(batch.leaves) == 1:
            raise
        damaged = True
    for place, leaf in enumerate(batch.leaves):
        if damaged:
            read = _Read(native, contents, _Batch([leaf], leaf.info.nbytes), device)
            read.wait()
            read.raise_error()
        yield leaf.fqn, read.take(0 if damaged else place), leaf.info.nbytes


class _Read:
    """The read of one batch into new memory, which runs on its own thread.

    The memory is allocated by the thread that creates the object, and device memory is filled in
    the order of that thread's current streams.
    """

    def __init__(
        self, native: _cairn.Store, contents: _cairn.Contents, batch: _Batch, device: Any
    ) -> None:
        self._native = native
        self._contents = contents
        self._device = device
        self._leaves = batch.leaves
        self._requests = _cairn.Requests()
        self._memory = [self._allocate(leaf) for leaf in batch.leaves]
        self._streams = devices.current_streams(self._requests.devices())
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, name="cairn-stream"
        )
        try:
            self._thread.start()
        except RuntimeError:  # no thread can start, for example because Python is shutting down
            self._thread = None
            self._run()

    def wait(self) -> None:
        """Waits until nothing is read any more. Ctrl-C ends the wait."""
        if self._thread is not None:
            self._thread.join()

    def raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def take(self, place: int) -> Any:
        """The tensor of a leaf, which this object does not keep."""
        memory, self._memory[place] = self._memory[place], None
        if self._leaves[place].kind == NUMPY_SCALAR:
            return memory[()]
        if self._leaves[place].kind == TENSOR and self._device is not None:
            return memory.to(self._device)
        return memory

    def _run(self) -> None:
        try:
            self._native.load(
                self._contents.info, self._requests, self._streams, contents=self._contents
            )
        except BaseException as error:
            self._error = error

    def _allocate(self, leaf: TensorLeaf) -> Any:
        info, device = leaf.info, self._device if is_reached(self._device) else None
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
