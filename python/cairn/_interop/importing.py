"""`kv-admin import` of files of torch.save and directories of torch.distributed.checkpoint, and
imports that convert.

1. The files are mapped and read as one state of views, and every byte is checked that has a
   checksum.
2. The state, the tags and the base are checked: what is refused creates neither store nor step.
3. The save reads the bytes from the mapped files. Pages that it has read are released.

Other files than those of torch are imported by kv-admin, into a temporary store.

A state is converted in memory. Tensors that are only renamed remain views of their memory. All
others are computed into an unnamed temporary file that stays mapped, so that its pages need not
remain in memory.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import subprocess
import tempfile
from argparse import Namespace
from typing import Any

import numpy as np
import torch

from cairn import _cairn
from cairn._base import dtypes
from cairn._base.progress import Display, amount, showing
from cairn._interop.archives import Archive, MappedFile, verify
from cairn._interop.dcp_reader import DcpReader
from cairn._interop.report import conversion, count, say, warn, write_step
from cairn._interop.states import Checker, described, join, located
from cairn._load.conversions import ConversionOptions
from cairn._load.converted_keys import Key, convert_keys
from cairn._load.converted_load import fill_from_memory, raw_array
from cairn._load.read import Reader
from cairn._load.renamed_state import name_of, paths_of, renamed_state
from cairn._ranks.ranks import this_process
from cairn._save.flatten import flatten
from cairn._tensors.sources import BoxedTensor
from cairn.errors import Corrupt, Invalid, NotFound, Unavailable

_ALIGN_BYTES = 4096


def run(options: Namespace) -> None:
    """Imports `options.files` as one step."""
    rules = conversion(options)
    if options.program:
        _import_from_store(options, rules)
    else:
        _import_from_torch(options, rules)


def _import_from_store(options: Namespace, rules: ConversionOptions | None) -> None:
    """Converts what kv-admin, which is `options.program`, imports into a temporary store."""
    with tempfile.TemporaryDirectory(prefix="cairn-") as folder:
        store = os.path.join(folder, "store")
        words = [options.program, "import", store, "--step=0"]
        words += [f"--prefix={options.prefix}"] if options.prefix else []
        words += [f"--format={options.format}"] if options.format else []
        words += ["--skip-unknown"] if options.skip_unknown else []
        status = subprocess.run([*words, *options.files], stdout=subprocess.DEVNULL).returncode
        if status:
            raise SystemExit(status)  # it has printed the error
        native = _cairn.Store(store, False, None)
        contents = native.contents(0, [])
        reader = Reader(native, contents, device=None, mmap=True, verify=False)
        state = contents.build(reader.read(allow_pickle=False), lambda parts, fqn: parts)
        _save(options, _converted(state, rules), [])
        native.close()


def _converted(state: Any, rules: ConversionOptions | None) -> _cairn.Batch:
    if rules is not None:
        state = _convert(state, rules)
    return flatten(state, False, this_process(0), []).batch


def _import_from_torch(options: Namespace, rules: ConversionOptions | None) -> None:
    checker = Checker(options.skip_unknown)
    states: list[Any] = []
    archives: list[Archive] = []
    files: list[MappedFile] = []
    with described():
        for path in options.files:
            if os.path.isdir(path) or path.endswith(".metadata"):
                reader = DcpReader(path, checker)
                states.append(reader.read())
                archives += reader.archives
                files += reader.files.values()
            else:
                with located(file=path):
                    archive = Archive(MappedFile(path))
                    value, unpickler = archive.read()
                    checker.count(unpickler)
                    states.append(checker.check(value))
                archives.append(archive)
                files.append(archive.file)
        with Display("checking") as display:
            unchecked = verify(archives, display.update)
        state = join(states, options.prefix)
    if options.index:
        _check_promised(options, _converted(state, None))
    _save(options, _converted(state, rules), files)
    left_out = [f"'{key}' was left out: {what}" for key, what in checker.left_out]
    warn(left_out)
    warn([f"'{path}' has no checksums: its bytes were not checked" for path in sorted(unchecked)])
    if checker.tensors_with_attributes:
        tensors = count(checker.tensors_with_attributes, "tensor")
        warn([f"Python attributes of {tensors} were left out"])


def _check_promised(options: Namespace, batch: _cairn.Batch) -> None:
    """Each tensor that an index names must be in one of its shards. Raises Corrupt."""
    prefix = f"{options.prefix}." if options.prefix else ""
    present = {tensor[0] for tensor in batch.layout()[1]}
    for path in options.index:
        with open(path, "rb") as file:
            promised = json.load(file)["weight_map"]
        for name in promised:
            if prefix + name not in present:
                raise Corrupt(
                    f"the index names a tensor that is in no shard (key {name}, file {path})"
                )


def _save(options: Namespace, batch: _cairn.Batch, files: list[MappedFile]) -> None:
    if not len(batch):
        raise Invalid("there is nothing to import: no tensors or values are left")
    _cairn.check_save(options.step, batch, overwrite=options.overwrite, tags=options.tag)
    if options.base is not None:
        reader = _cairn.Store(options.store, False, None)
        if options.base not in reader.steps():
            raise NotFound(f"the store has no step {options.base}, the base (step {options.base})")
        reader.close()
    store = _cairn.Store(options.store, True, None)
    with Display("importing") as display:

        def progress(done: int, total: int) -> None:
            for file in files:
                file.release()
            display.update(done, total)

        with showing(progress, "importing", 0):
            report = store.save(
                options.step, batch, overwrite=options.overwrite, base_step=options.base,
                tags=options.tag,
            )  # fmt: skip
    store.close()
    tensors = len(batch.layout()[1])
    write_step(options.step, tensors, len(batch) - tensors, report.logical_bytes, report.seconds)
    if report.chunks_reused:
        say(
            f"{report.chunks_reused:,} of {report.chunks:,} chunks existed already; "
            f"{amount(report.written_bytes)} written"
        )


def _convert(state: Any, options: ConversionOptions) -> Any:
    """The state after the rules and casts. Raises Invalid, also for a tensor that is not in one
    part; Unavailable if the temporary file cannot be written."""
    leaves: list[Any] = []
    tree = _numbered(state, leaves)
    sources = [_source(leaves[i], name_of(path), i) for path, i in paths_of(tree) if i is not None]
    keys = convert_keys(sources, options.rules, options.dtype, {})
    computed = [key for key in keys if not _is_view(key, sources)]
    arrays = {key.source: _array(leaves[key.source]) for key in sources if key.dtype is not None}
    scratch = _Scratch(sum(_slot_bytes(key) for key in computed))
    tensors = {}
    for key in computed:
        tensors[key.fqn] = scratch.take(key)
        fill_from_memory(key, sources, arrays, raw_array(tensors[key.fqn]))

    def value_of(key: Key) -> Any:
        return tensors.get(key.fqn, leaves[key.source])

    return renamed_state(tree, [key.fqn for key in sources], keys, value_of)


def _numbered(value: Any, leaves: list[Any]) -> Any:
    """The containers of a state with the positions of the leaves in `leaves`, which it fills."""
    if isinstance(value, dict):
        return type(value)({key: _numbered(child, leaves) for key, child in value.items()})
    if isinstance(value, (list, tuple)):
        return type(value)([_numbered(child, leaves) for child in value])
    leaves.append(value)
    return len(leaves) - 1


def _source(leaf: Any, fqn: str, place: int) -> Key:
    if isinstance(leaf, torch.Tensor):
        return Key(fqn, place, dtypes.code_of_torch(leaf.dtype), tuple(leaf.shape))
    if not isinstance(leaf, BoxedTensor):
        return Key(fqn, place)
    if not leaf.is_complete:
        raise Invalid(f"sharded tensors cannot be converted on a save (key {fqn})", key=fqn)
    return Key(fqn, place, leaf.dtype, leaf.shape)


def _array(leaf: Any) -> np.ndarray:
    return raw_array(leaf) if isinstance(leaf, torch.Tensor) else leaf.boxes[0].array


def _is_view(key: Key, sources: list[Key]) -> bool:
    return key.dtype is None or (key.is_whole and key.dtype == sources[key.source].dtype)


def _slot_bytes(key: Key) -> int:
    """Every tensor begins on a page."""
    size = math.prod(key.shape) * dtypes.item_bytes(key.dtype or 0)
    return -(-size // _ALIGN_BYTES) * _ALIGN_BYTES


class _Scratch:
    """Memory of an unnamed temporary file."""

    def __init__(self, size: int) -> None:
        self._next = 0
        try:
            with tempfile.TemporaryFile() as file:
                # Reserves the space: a full disk must not end the process when a page is written.
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
                self._map = mmap.mmap(file.fileno(), max(size, 1))
        except OSError as error:
            raise Unavailable(f"allocating a temporary file: {error.strerror}") from None

    def take(self, key: Key) -> torch.Tensor:
        """The next part, as a tensor of the key's dtype and shape."""
        dtype, count = dtypes.torch_dtype(key.dtype or 0), math.prod(key.shape)
        if count == 0:
            return torch.empty(key.shape, dtype=dtype)
        size = _slot_bytes(key)
        memory = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=self._next)
        self._next += size
        return memory[: count * dtype.itemsize].view(dtype).view(key.shape)
