"""`Trial`: one cell, run by each of its ranks, and compared with the model.

1. Prepare: the steps 1 and 2 are saved, and the operation prepares what it needs.
2. Act, with the fault of the cell. It works or raises an error.
3. After an error of a fault, each step is as it was before or after the operation, the store
   verifies, and the operation works when it is repeated.
4. Compare: the store and the other store have exactly the steps of the model, bit for bit, and
   verify. After a refusal they are as before.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cells
import torch.distributed as dist
from cairn_testing import wait_until
from operations import OPERATIONS, Steps
from payloads import Flat, differ, host_state, in_kind, nested
from s3_faults import Faults

import cairn
import cairn._load.stream  # now, because an import needs file descriptors
import cairn.reports

PROGRAMS = Path(cairn.__file__).parents[2] / "bin"
_TIMEOUT = 240.0
_LIMITS = {"no descriptors": resource.RLIMIT_NOFILE, "no space": resource.RLIMIT_FSIZE}
_WRITTEN = {
    "small chunks": cairn.SaveTuning(chunk_bytes=65536),
    "deltas": cairn.SaveTuning(deltas=8),
    "compressed": cairn.SaveTuning(compress=True),
}
_numbers = itertools.count()


class ProgramError(Exception):
    """A program could not do what was asked, and has stated so in one line."""


class Trial:
    """See the module. `before` and `after` are the model: the flat state of each step."""

    def __init__(self, cell: cells.Cell, rank: int, folder: Path, places: dict[str, str]) -> None:
        self.cell, self.rank, self._folder, self._places = cell, rank, folder, places
        self._operation = OPERATIONS[cell.operation]
        self._faults: Faults | None = None
        self._opened: cairn.Store | None = None
        self._is_damaged = False
        self._mesh: Any = None
        if cells.world_size(cell.payload) > 1:
            from torch.distributed.device_mesh import init_device_mesh

            self._mesh = init_device_mesh("cpu", (2, 2))
        self.before: dict[int, Flat] = {1: self.host(0), 2: self.host(1)}
        self.other_before: dict[int, Flat] = {}
        self.raised = ""
        """The error of the fault."""

    def run(self) -> None:
        """Raises the error of a refusal, and AssertionError if something is wrong."""
        os.environ["CAIRN_CACHE"] = str(self._folder / "cache") if self.cell.cache == "on" else ""
        with contextlib.ExitStack() as stack:
            if self.cell.storage == "s3" and self.cell.fault != "none" and self.rank == 0:
                proxy = Faults(os.environ["AWS_ENDPOINT_URL_S3"])
                self._faults = stack.enter_context(proxy.serving())
            self.address, self.other = self.on_rank0(self._addresses)
            stack.callback(self._discard)
            self._run()

    def _run(self) -> None:
        self.open()
        self._write_steps()
        self._operation.prepare(self)
        self.after = self.before | self._model(self._operation.adds)
        for step in self._operation.removes:
            del self.after[step]
        self.other_after = self._model(self._operation.other)
        error, files = None, self._files()
        with self._fault():
            try:
                self._act()
            except (cairn.Error, ProgramError) as raised:
                error = raised
            except OSError as raised:  # of Python, which imports modules when they are needed
                if self.cell.fault != "no descriptors":
                    raise
                error = raised
        if error is not None and self.cell.fault != "none":
            self._recover(error)
            error = None
        self.close()
        if error is not None:
            changed = {name for name, _ in files.items() ^ self._files().items()}
            assert not changed, f"the refused operation has changed {sorted(changed)}"
            if self._is_damaged:
                self.on_rank0(self._flip_byte)  # back
        self.on_rank0(lambda: self._check(is_after=error is None))
        if error is not None:
            raise error

    def _act(self) -> None:
        act, program = self._operation.act, self._operation.program
        if program and (self.cell.by == "program" or act is None):
            self.program(program)
        elif program and not self._operation.all_ranks:
            self.on_rank0(lambda: act(self))
        else:
            act(self)

    def _recover(self, error: Exception) -> None:
        self.raised = f"{type(error).__name__}: {error}"
        if self._opened is not None:
            with contextlib.suppress(cairn.Error):
                self._opened.__exit__(type(error), error, None)
            self._opened = None
        self.open(take_over=True)
        if self._is_damaged or not self.on_rank0(self._is_done):
            self._act()

    def _is_done(self) -> bool:
        """Checks what the error has left. Returns whether the operation was performed."""
        steps = self.store.steps()
        for step in steps:
            found = self.store.read(step=step, flat=True)
            models = [model[step] for model in (self.before, self.after) if step in model]
            assert not all(_difference(found, model) for model in models), f"step {step}"
        lost = (self.before.keys() & self.after.keys()).difference(steps)
        assert not lost, f"the steps {lost} are lost"
        self.scrub(self.store)
        return steps == sorted(self.after) != sorted(self.before) and not self.other_after

    def _check(self, is_after: bool) -> None:
        steps, other = (
            (self.after, self.other_after) if is_after else (self.before, self.other_before)
        )
        tags = self._operation.tags if is_after else {}
        for address, steps, tags in ((self.address, steps, tags), (self.other, other, {})):
            try:
                store = cairn.open(address, alone=True)
                found = store.steps()
            except cairn.NotFound:
                assert not steps, f"there is no store {address}"
                continue
            with store:
                assert (found, store.tags()) == (sorted(steps), tags), address
                for step in found:
                    self.compare(store.read(step=step, flat=True), steps[step])
                for name, step in tags.items():
                    self.compare(store.read(step=name, flat=True), steps[step])
                self.scrub(store)

    # What operations use ----------------------------------------------------------------------

    def host(self, version: int) -> Flat:
        """The model of a version."""
        return host_state(self.cell.payload, self.cell.dtype, version)

    def _model(self, steps: Steps) -> dict[int, Flat]:
        return {
            step: self.host(made) if isinstance(made, int) else made(self.host)
            for step, made in steps.items()
        }

    def part_of(self, flat: Flat) -> Flat:
        """What this rank holds of it, in tensors of the cell's kind."""
        return in_kind(self.cell.payload, flat, self._mesh)

    def state_of(self, flat: Flat) -> dict[str, Any]:
        return nested(self.part_of(flat))

    def payload(self, version: int) -> dict[str, Any]:
        """The state that this rank saves of a version."""
        return self.state_of(self.host(version))

    def stream(self, step: int, version: int) -> None:
        """A save that adds one key after the other."""
        with self.store.writer(step) as writer:
            for name, value in self.payload(version).items():
                writer.add(name, value)

    def on_rank0(self, function: Callable[[], Any]) -> Any:
        """Runs it on rank 0. All ranks return its result, if that is simple, or raise its error."""
        if self._mesh is None:
            return function()
        result: list[Any] = [None, None]
        if self.rank == 0:
            try:
                returned = function()
                result[0] = returned if isinstance(returned, (bool, tuple)) else None
            except Exception as error:
                result[1] = error
        dist.broadcast_object_list(result)
        if result[1] is not None:
            raise result[1]
        return result[0]

    def together(self, function: Callable[[], None]) -> None:
        """Runs it on each rank. If it fails on one, all raise its error, and none continues."""
        error = None
        try:
            function()
        except cairn.Error as raised:
            error = raised
        if self._mesh is not None:
            errors: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(errors, error)
            error = next(filter(None, [error, *errors]), None)
        if error is not None:
            raise error

    def program(self, words: str, status: int = 0) -> None:
        """Runs a program, while the store is closed."""
        places = {"store": self.address, "other": self.other, "folder": str(self._folder)}

        def run() -> None:
            name, *arguments = (word.format(**places) for word in words.split())
            ended = subprocess.run(
                [PROGRAMS / name, *arguments], capture_output=True, text=True, timeout=_TIMEOUT
            )
            if ended.returncode == 2 and ended.stderr.startswith(f"{name}: "):
                raise ProgramError(ended.stderr.strip())
            assert ended.returncode == status, (ended.returncode, ended.stdout, ended.stderr)

        self.together(self.close)
        self.on_rank0(run)
        self.together(self.open)

    def damage(self) -> None:
        """Flips a byte in the largest segment of a directory."""
        self._is_damaged = True
        self.on_rank0(self._flip_byte)

    def _flip_byte(self) -> None:
        if self.cell.storage == "directory":
            files = sorted(Path(self.address).glob("segments/*"), key=lambda f: f.stat().st_size)
            for largest in files[-1:]:
                data = bytearray(largest.read_bytes())
                data[len(data) // 2] ^= 1
                largest.write_bytes(data)

    def compare(self, found: Flat, expected: Flat) -> None:
        """Compares what was read with the model, bit for bit."""
        difference = _difference(found, expected)
        assert not difference, f"wrong: {difference}"

    def scrub(self, store: cairn.Store) -> None:
        """Verifies the complete store, as kv-dump verify does."""
        with store.scrub(max_rate=0, every=1e8) as scrub:
            wait_until(lambda: scrub.passes > 0 or scrub.error is not None)
            if scrub.error is not None:
                raise cairn.Unavailable(scrub.error)
            assert scrub.passes == 1 and not scrub.damage, scrub.damage

    # The stores -------------------------------------------------------------------------------

    def open(self, mode: str = "a", take_over: bool = False) -> None:
        self.store = self._opened = cairn.open(
            self.address, mode, timeout=_TIMEOUT, grace=float(self.cell.grace), take_over=take_over
        )

    def open_to_read(self) -> None:
        if self.cell.handle == "reader":
            self.together(self.close)
            self.together(lambda: self.open("r"))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def _addresses(self) -> tuple[str, str]:
        def address(kind: str, name: str) -> str:
            if kind == "directory":
                return str(self._folder / name)
            if kind == "memory":
                return f"memory:{name}"
            return f"{self._places[kind]}/{self._folder.name}-{name}"

        number = next(_numbers)
        store = address(self.cell.storage, f"store-{number}")
        if self._faults is not None:
            store = self._faults.address(store)
        return store, address(self.cell.other, f"other-{number}")

    def _write_steps(self) -> None:
        how = self.cell.written
        if how == "copied":
            self.on_rank0(self._copy_from_elsewhere)
            return
        for step in self.before:
            if how == "streamed":
                self.stream(step, step - 1)
            else:
                self.store.save(step, self.payload(step - 1), tuning=_WRITTEN.get(how))
        if how == "compacted":
            self.store.save(3, self.payload(2))
            self.store.delete(3)
            self.on_rank0(lambda: self.store.compact(max_dead=0))

    def _copy_from_elsewhere(self) -> None:
        with cairn.open(f"memory:source of {self.address}", "a", alone=True) as source:
            for step, flat in self.before.items():
                source.save(step, nested(flat))
            cairn.copy_steps(source, self.store)

    @contextlib.contextmanager
    def _fault(self) -> Iterator[None]:
        """The fault of the cell, on rank 0."""
        fault = self.cell.fault
        with contextlib.ExitStack() as stack:
            if self.rank == 0 and self._faults is not None:
                which, how = fault.split()
                self._faults.arm(how, cells.REQUESTS[which])
                stack.callback(self._faults.disarm)
            elif self.rank == 0 and fault in _LIMITS:
                before = resource.getrlimit(_LIMITS[fault])
                count = len(os.listdir("/proc/self/fd")) if fault == "no descriptors" else 0
                resource.setrlimit(_LIMITS[fault], (count, before[1]))
                stack.callback(resource.setrlimit, _LIMITS[fault], before)
            yield

    def _files(self) -> dict[str, bytes]:
        """The objects of a directory that an open and a close leave as they are."""
        if self.cell.storage != "directory" or self.rank > 0:
            return {}
        folders = (Path(self.address, name) for name in ("segments", "tables", "pages"))
        files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    def _discard(self) -> None:
        """Frees the space of the stores."""
        if self._opened is not None:
            with contextlib.suppress(cairn.Error):
                self._opened.abandon()
        for address in (self.address, self.other) if self.rank == 0 else ():
            if ":" not in address:
                shutil.rmtree(address, ignore_errors=True)
            elif self.cell.payload == "24 MiB":
                with contextlib.suppress(cairn.Error):
                    store = cairn.open(address, "a", alone=True, take_over=True, grace=0)
                    with store:
                        store.delete(*store.steps())


def _difference(found: Flat, expected: Flat) -> str:
    if found.keys() != expected.keys():
        return f"the keys are {[*found]} instead of {[*expected]}"
    return ", ".join(name for name in found if differ(found[name], expected[name]))
