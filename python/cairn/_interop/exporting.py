"""`kv-admin export` to files of torch.save and directories of torch.distributed.checkpoint, and
exports that convert.

Files get temporary names, are synced, and are then renamed, so that an old file or the new one is
complete at any time.
"""

from __future__ import annotations

import os
import secrets
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import Any, BinaryIO

from cairn import _cairn
from cairn._base.progress import showing
from cairn._interop.archives import ArchiveWriter
from cairn._interop.payload import blocks
from cairn._interop.report import Line, conversion, count, say, warn, write_step
from cairn._interop.step_pickles import Leaves, Tensor, dump
from cairn.errors import NotFound, Unavailable


def run(options: Namespace) -> None:
    """Exports a step."""
    begin = time.monotonic()
    native = _cairn.Store(options.store, False, None)
    rules = conversion(options)
    contents = native.contents(options.step, [] if rules else options.pattern)
    if rules:
        contents = rules.convert(contents, options.pattern)
        if len(contents) == 0:
            raise NotFound(f"no tensor matches (step {options.step})")
    if options.format in ("safetensors", "hf"):
        _export_converted(native, contents, options)
        return
    leaves = Leaves(contents)
    source = Source(native, contents)
    if options.format == "torch":
        files = [options.target]
        _write_torch(source, leaves, options.target)
        why = "weights_only accepts no other arrays"
    else:
        from cairn._interop.dcp_writer import write_dcp

        files = write_dcp(source, leaves, options.target, options.shard_size)
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
        shown = _cairn.set_progress(None)
        try:
            contents.conversion.load(native, requests)
        finally:
            _cairn.set_progress(shown)

    is_model = options.format == "hf"
    with Line("exporting") as line, showing(line, "exporting", 0):
        files, tensors, size, *left_out, seconds = _cairn.export_converted(
            native, contents, options.target, load, is_model, options.shard_size, options.overwrite
        )
    write_step(options.step, tensors, 0, size, seconds)
    for file in files:
        say(f"  {file}")
    nouns = ("tensor", "plain value")
    texts = [count(number, noun) for number, noun in zip(left_out, nouns) if number]
    if texts:
        why = "they do not belong to the model" if is_model else "safetensors holds only tensors"
        warn([f"{', '.join(texts)} left out: {why}"])


class Source:
    """The bytes of tensors of a step, and the progress of reading them."""

    def __init__(self, native: _cairn.Store, contents: _cairn.Contents) -> None:
        self._native, self._contents = native, contents
        self.done = self.total = 0

    def read(self, tensors: list[_cairn.TensorInfo]) -> Iterator[tuple[int, Iterator[Any]]]:
        """For each tensor in order its index and its bytes, in blocks."""
        for index, parts in groupby(self._blocks(tensors), itemgetter(0)):
            yield index, (block for _, block in parts)

    def _blocks(self, tensors: list[_cairn.TensorInfo]) -> Iterator[tuple[int, Any]]:
        with Line("exporting") as line:
            for index, block in blocks(self._native, self._contents, tensors):
                self.done += len(block)
                line(self.done, self.total)
                yield index, block


def _write_torch(source: Source, leaves: Leaves, path: str) -> None:
    pickled, storages = dump(leaves.build())
    source.total = sum(storage.nbytes for storage in storages)
    with durable_file(path) as file:
        archive = ArchiveWriter(file, pickled)
        for index, parts in source.read(storages):
            archive.add_storage(storages[index].nbytes, parts)
        archive.finish()


@contextmanager
def durable_file(path: str, placed: Callable[[], None] = lambda: None) -> Iterator[BinaryIO]:
    """A file that gets its name when the block ends without an error; otherwise none remains.
    `placed` is called as soon as it has its name."""
    temporary = f"{path}.{secrets.randbits(63)}.tmp"
    try:
        with open(temporary, "xb") as file:  # never a file of somebody else
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        placed()
        sync_folder(os.path.dirname(path) or ".")
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise Unavailable(f"cannot write the file: {error.strerror} (file {path})") from None
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def sync_folder(path: str) -> None:
    """Makes the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
