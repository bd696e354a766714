"""`kv-admin export` to files of torch.save and directories of torch.distributed.checkpoint, and
exports that convert.

An old file or the new one is complete at any time. Memory is bounded.
"""

from __future__ import annotations

import itertools
import math
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from operator import itemgetter

import numpy as np

from cairn import _cairn
from cairn._base.devices import HOST
from cairn._base.devices import load as load_requests
from cairn._base.dtypes import item_bytes
from cairn._base.files import replacing
from cairn._base.progress import Display, showing
from cairn._interop.archives import ArchiveWriter
from cairn._interop.report import conversion, count, say, warn, write_step
from cairn._interop.step_pickles import Leaves, Tensor, dump
from cairn._tensors.sources import address_of, row_major
from cairn.errors import NotFound


def run(options: Namespace) -> None:
    """Exports a step to `options.files[0]`."""
    begin, target = time.monotonic(), options.files[0]
    native = _cairn.Store(options.store, False, None)
    rules = conversion(options)
    contents = native.contents(options.step, [] if rules else options.pattern)
    if rules:
        reads_values = options.format == "hf"  # files of the model
        contents = rules.convert(contents, options.pattern, reads_values=reads_values)
        if len(contents) == 0:
            raise NotFound(f"no tensor matches (step {options.step})")
    if options.format in ("safetensors", "hf"):
        _export_converted(native, contents, options)
        return
    leaves = Leaves(contents)
    source = Source(native, contents)
    if options.format == "torch":
        files = [target]
        _write_torch(source, leaves, target)
        why = "weights_only accepts no other arrays"
    else:
        from cairn._interop.dcp_writer import write_dcp

        files = write_dcp(source, leaves, target, options.shard_size)
        why = "torch.distributed.checkpoint stores no other arrays as items"
    tensors = sum(type(leaf) is Tensor for leaf in leaves.leaves)
    write_step(options.step, tensors, leaves.values, source.done, time.monotonic() - begin)
    for file in files:
        say(f"  {file}")
    if leaves.arrays:
        warn([f"{count(leaves.arrays, 'numpy array')} became torch tensors: {why}"])


def _export_converted(native: _cairn.Store, contents: _cairn.Contents, options: Namespace) -> None:
    """Writes converted contents as safetensors files or, for hf, as the directory of a model."""

    def load(requests: _cairn.Requests) -> None:
        previous = _cairn.set_progress(None)
        try:
            contents.conversion.load(native, requests)
        finally:
            _cairn.set_progress(previous)

    is_model = options.format == "hf"
    with showing(True, "exporting", 0):
        files, tensors, size, *left_out, seconds = _cairn.export_converted(
            native,
            contents,
            options.files[0],
            load,
            is_model,
            options.shard_size,
            options.overwrite,
        )
    write_step(options.step, tensors, 0, size, seconds)
    for file in files:
        say(f"  {file}")
    nouns = ("tensor", "plain value")
    texts = [count(number, noun) for number, noun in zip(left_out, nouns) if number]
    if texts:
        why = "they do not belong to the model" if is_model else "safetensors holds only tensors"
        warn([f"{', '.join(texts)} left out: {why}"])


_BATCH_BYTES = 32 << 20


class Source:
    """The bytes of tensors of a step; `done` of them were read."""

    def __init__(self, native: _cairn.Store, contents: _cairn.Contents) -> None:
        self._native, self._contents = native, contents
        self.done = 0

    def read(self, tensors: list[_cairn.TensorInfo]) -> Iterator[Iterator[memoryview]]:
        """The bytes of each tensor in order, in blocks, and shows the progress. A block is valid
        until the next one. Raises what a load raises."""
        total = sum(tensor.nbytes for tensor in tensors)
        with Display("exporting") as display:
            blocks = self._blocks(tensors, lambda: display.update(self.done, total))
            for _, parts in itertools.groupby(blocks, itemgetter(0)):
                yield (block for _, block in parts)

    def _blocks(
        self, tensors: list[_cairn.TensorInfo], show: Callable[[], None]
    ) -> Iterator[tuple[int, memoryview]]:
        """Each block with the index of its tensor; one empty block of a tensor without elements."""
        buffer = np.empty(_BATCH_BYTES, np.uint8)
        address = address_of(buffer)
        pending: list[tuple[int, int]] = []  # index, and bytes in the buffer
        requests, used = _cairn.Requests(), 0

        def load() -> Iterator[tuple[int, memoryview]]:
            if len(requests):
                info = self._contents.info
                load_requests(self._native, info, requests, contents=self._contents)
            begin = 0
            for index, size in pending:
                self.done += size
                show()
                yield index, memoryview(buffer)[begin : begin + size]
                begin += size

        for index, info in enumerate(tensors):
            for offsets, sizes in _boxes(info.shape, item_bytes(info.dtype)):
                size = math.prod(sizes) * item_bytes(info.dtype)
                if used + size > _BATCH_BYTES:
                    yield from load()
                    requests, used = _cairn.Requests(), 0
                    pending.clear()
                target = (info.dtype, row_major(sizes), address + used, HOST)
                if size:
                    requests.add(info.fqn, offsets, sizes, target)
                pending.append((index, size))
                used += size
        yield from load()


def _write_torch(source: Source, leaves: Leaves, path: str) -> None:
    pickled, storages = dump(leaves.build())
    with replacing(path) as file:
        archive = ArchiveWriter(file, pickled)
        for info, parts in zip(storages, source.read(storages), strict=True):
            archive.add_storage(info.nbytes, parts)
        archive.finish()


def _boxes(shape: tuple[int, ...], item: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes that follow each other in row-major order, each of at most half a batch."""
    inner, dim = item, len(shape)
    while dim > 0 and inner * shape[dim - 1] <= _BATCH_BYTES // 2:
        dim -= 1
        inner *= shape[dim]
    if dim == 0 or 0 in shape:
        yield (0,) * len(shape), shape
        return
    # Everything below dimension `dim - 1`, which is divided, fits.
    rows = max(1, _BATCH_BYTES // 2 // inner)
    rest = len(shape) - dim
    for outer in itertools.product(*map(range, shape[: dim - 1])):
        for begin in range(0, shape[dim - 1], rows):
            size = min(rows, shape[dim - 1] - begin)
            yield (*outer, begin, *(0,) * rest), (*(1,) * len(outer), size, *shape[dim:])
