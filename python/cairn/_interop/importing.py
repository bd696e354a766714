"""`kv-admin import` of files of torch.save and directories of torch.distributed.checkpoint, and
imports that convert.

1. The files are mapped and read as one state of views, and every byte is checked that has a
   checksum.
2. The state, the tags and the base are checked: what is refused creates neither store nor step.
3. The save reads the bytes from the mapped files. Pages that it has read are released.

Other files than those of torch are imported by kv-admin, into a temporary store.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from argparse import Namespace
from typing import Any

from cairn import _cairn
from cairn._base.progress import Display, amount, showing
from cairn._interop.archives import Archive, MappedFile, verify
from cairn._interop.dcp_reader import DcpReader
from cairn._interop.report import conversion, count, say, warn, write_step
from cairn._interop.states import Checker, described, join, located
from cairn._load.conversions import ConversionOptions
from cairn._load.read import Reader
from cairn._ranks.ranks import this_process
from cairn._save.flatten import flatten
from cairn.errors import Corrupt, Invalid, NotFound


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
        from cairn._interop.converting import convert

        state = convert(state, rules)
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
