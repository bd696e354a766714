"""`kv-admin import` of files of torch.save and directories of torch.distributed.checkpoint.

1. The files are mapped and read as one state of views, and every byte is checked that has a
   checksum.
2. The state, the tags and the base are checked: what is refused creates neither store nor step.
3. The save reads the bytes from the mapped files. Pages that it has read are released.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from typing import Any

from cairn import _cairn
from cairn._base.progress import showing
from cairn._interop.archives import Archive, MappedFile, verify
from cairn._interop.dcp_reader import DcpReader
from cairn._interop.report import Line, amount, conversion, count, say, warn, write_step
from cairn._interop.states import Checker, described, join, located
from cairn._ranks.ranks import this_process
from cairn._save.flatten import flatten
from cairn.errors import Corrupt, NotFound
from cairn.reports import SaveReport


def run(options: Namespace) -> None:
    """Imports `options.files` as one step."""
    checker = Checker(options.skip_unknown)
    states: list[Any] = []
    archives: list[Archive] = []
    files: list[MappedFile] = []
    unchecked: set[str] = set()
    with described():
        for path in options.files:
            if os.path.isdir(path) or path.endswith(".metadata"):
                reader = DcpReader(path, checker)
                states.append(reader.read())
                archives += reader.archives
                files += reader.files
                unchecked |= reader.unchecked
            else:
                with located(file=path):
                    archive = Archive(MappedFile(path))
                    value, unpickler = archive.read()
                    checker.count(unpickler)
                    states.append(checker.check(value))
                archives.append(archive)
                files.append(archive.file)
        with Line("checking") as line:
            unchecked |= verify(archives, line)
        state = join(states, options.prefix)
    batch = flatten(state, False, this_process(0), []).batch
    _check_promised(options, batch)
    if rules := conversion(options):
        batch = _cairn.convert_batch(batch, rules.rules, rules.dtype)
    _save(options, batch, files)
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
    _cairn.check_save(options.step, batch, overwrite=options.overwrite, tags=options.tag)
    if options.base is not None:
        reader = _cairn.Store(options.store, False, None)
        if options.base not in reader.steps():
            raise NotFound(f"the store has no step {options.base}, the base (step {options.base})")
        reader.close()
    store = _cairn.Store(options.store, True, None)
    with Line("importing") as line:

        def progress(done: int, total: int) -> None:
            for file in files:
                file.release()
            line(done, total)

        with showing(progress, "importing", 0):
            report = SaveReport(*store.save(
                options.step, batch, overwrite=options.overwrite, base_step=options.base,
                tags=options.tag,
            ))  # fmt: skip
    store.close()
    tensors = len(batch.layout()[1])
    write_step(options.step, tensors, len(batch) - tensors, report.logical_bytes, report.seconds)
    if report.chunks_reused:
        say(
            f"{report.chunks_reused:,} of {report.chunks:,} chunks existed already; "
            f"{amount(report.written_bytes)} written"
        )
