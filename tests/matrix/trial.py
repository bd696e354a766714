"""`Trial`: one cell, run on all of its ranks, and compared with the model after each part of it.

1. Prepare: the steps 1 and 2 are saved, and the operation prepares what it needs.
2. Act, with the fault of the cell. It works, or raises an error.
3. Compare: the store and the other store have exactly the steps of the model, bit for bit, and
   verify. After an error, the model is the one before the operation. After a fault, each step may
   be as before or as after it; the operation is then repeated without a fault and has to work.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cells
import torch
import torch.distributed as dist
from operations import OPERATIONS
from payloads import flattened, host_state, in_kind, nested, on_host
from s3_faults import Faults

import cairn

PROGRAMS = Path(cairn.__file__).resolve().parents[2] / "bin"
_TIMEOUT = 60.0
_numbers = itertools.count()


class ProgramError(Exception):
    """A program could not do what was asked, and has stated so in one line."""


class Trial:
    """See the module. Each rank has one."""

    def __init__(self, cell: cells.Cell, rank: int, folder: Path, place: dict[str, str]) -> None:
        self.cell, self.rank, self.folder = cell, rank, folder
        self._place = place
        self._world_size = cells.world_size(cell.payload)
        self._mesh = None
        self.before: dict[int, dict[str, Any]] = {}
        self.after: dict[int, dict[str, Any]] = {}
        self.other_before: dict[int, dict[str, Any]] = {}
        self.other_after: dict[int, dict[str, Any]] = {}
        self.raised = ""
        """The error of the fault."""
        self._faults: Faults | None = None
        self._open: list[cairn.Store] = []

    def run(self) -> None:
        """Raises what the cell raises; AssertionError if it is neither right nor a refusal."""
        number = f"{next(_numbers)}-{self.rank if self._world_size == 1 else 0}"
        with contextlib.ExitStack() as stack:
            if self._world_size > 1:
                self._mesh = _mesh(self._world_size)
            if self.cell.fault != "none" and self.cell.storage == "s3" and self.rank == 0:
                endpoint = os.environ["AWS_ENDPOINT_URL_S3"]
                self._faults = stack.enter_context(Faults(endpoint).serving())
            self.address, self.other = (
                self._address(kind, f"{name}-{number}")
                for kind, name in ((self.cell.storage, "store"), (self.cell.other, "other"))
            )
            if self.cell.cache == "on":
                os.environ["CAIRN_CACHE"] = str(self.folder / "cache")
            else:
                os.environ.pop("CAIRN_CACHE", None)
            stack.callback(self._discard)
            self._run()

    def _run(self) -> None:
        error = None
        try:
            self.open()
            self._write_steps()
            self.after = dict(self.before)
            act = OPERATIONS[self.cell.operation](self)
        except (cairn.Error, ProgramError) as refused:
            error = refused
        files = self._files()
        if error is None:
            with self._fault():
                try:
                    act()
                except (cairn.Error, ProgramError) as raised:
                    error = raised
        if self.cell.fault == "none":
            self.close()
            self._check(self.after if error is None else self.before, is_after=error is None)
            if error is not None:
                assert self._files() == files, "the refused operation has changed the store"
                raise error
            return
        if error is not None:
            self.raised = f"{type(error).__name__}: {error}"
            assert str(error), "an error without a text"
            self._close_after(error)
            self.open(take_over=True)
            self.on_rank0(lambda: self._check_each(self.store))
            done = self.on_rank0(lambda: self._is_done())
            if not done:
                act()
        self.close()
        self._check(self.after, is_after=True)

    # What operations use ----------------------------------------------------------------------

    def host(self, version: int) -> dict[str, Any]:
        """The model of a version."""
        return host_state(self.cell.payload, self.cell.dtype, version)

    def payload(self, version: int) -> dict[str, Any]:
        """The state of a version as it is saved by this rank."""
        return self.state_of(self.host(version))

    def state_of(self, flat: dict[str, Any]) -> dict[str, Any]:
        """The state of this rank with these contents."""
        return nested(self.part_of(flat))

    def on_rank0(self, function: Callable[[], Any]) -> Any:
        """Runs it on rank 0. All ranks return its result or raise its error."""
        result: list[Any] = [None, None]
        if self.rank == 0:
            try:
                result[0] = function()
            except Exception as error:
                result[1] = error
        if self._world_size > 1:
            sent = [None if self._is_local(result[0]) else result[0], result[1]]
            dist.broadcast_object_list(sent)
            result = result if self.rank == 0 else sent
        if result[1] is not None:
            raise result[1]
        return result[0]

    @staticmethod
    def _is_local(value: Any) -> bool:
        return not isinstance(value, (bool, int, str, type(None)))

    def either(self, function: Callable[[], Any], words: str, status: int = 0) -> Callable:
        """What all ranks call, or a program."""
        return self.program(words, status) if self.cell.by == "program" else function

    def rank0(self, function: Callable[[], Any], words: str, status: int = 0) -> Callable:
        """What rank 0 calls alone, or a program."""
        return self.either(lambda: self.on_rank0(function), words, status)

    def reading(self, function: Callable[[], Any], together: bool = False) -> Callable:
        """A read through the handle of the cell, by all ranks or by rank 0."""

        def act() -> None:
            if self.cell.handle == "reader":
                self.close()
                self.open("r")
            function() if together else self.on_rank0(function)

        return act

    def program(self, words: str, status: int = 0) -> Callable:
        """A program, while the store is closed."""
        places = {"store": self.address, "other": self.other, "folder": str(self.folder)}

        def run() -> None:
            name, *arguments = (word.format(**places) for word in words.split())
            ended = subprocess.run(
                [PROGRAMS / name, *arguments], capture_output=True, text=True, timeout=_TIMEOUT,
                restore_signals=False,
            )  # fmt: skip
            if ended.returncode == 2 and ended.stderr.startswith(f"{name}: "):
                raise ProgramError(ended.stderr.strip())
            assert ended.returncode == status, (ended.returncode, ended.stdout, ended.stderr)

        def act() -> None:
            self.close()
            self.on_rank0(run)
            self.open()

        return act

    def copy_to_other(self) -> None:
        with cairn.open(self.other, "a", alone=True) as other:
            cairn.copy_steps(self.store, other)

    def copy_from_other(self) -> None:
        with cairn.open(self.other, alone=True) as other:
            cairn.copy_steps(other, self.store)

    def stream(self, step: int, version: int) -> None:
        """A save that adds one key after the other."""
        with self.store.writer(step) as writer:
            for name, value in self.payload(version).items():
                writer.add(name, value)

    def damage(self) -> None:
        """Flips a byte of the payload, if this can be done from outside."""
        if self.cell.storage == "directory":
            files = sorted(Path(self.address).glob("segments/*"), key=lambda f: f.stat().st_size)
            for largest in files[-1:]:
                data = bytearray(largest.read_bytes())
                data[len(data) // 2] ^= 1
                largest.write_bytes(data)

    def compare(self, found: dict[str, Any], expected: dict[str, Any]) -> None:
        """Compares what was read with the model, bit for bit."""
        assert found.keys() == expected.keys(), (found.keys(), expected.keys())
        for name, value in found.items():
            assert not self.differs(value, expected[name]), f"wrong bytes of {name}"

    def part_of(self, flat: dict[str, Any]) -> dict[str, Any]:
        """The flat state that this rank holds of one."""
        return in_kind(self.cell.payload, flat, self._mesh)

    @staticmethod
    def differs(a: Any, b: Any) -> bool:
        return on_host(a) != on_host(b)

    def scrub(self, store: cairn.Store) -> None:
        """Verifies the complete store, as kv-dump verify does."""
        with store.scrub(max_rate=0, every=1e8) as scrub:
            deadline = time.monotonic() + _TIMEOUT
            while scrub.passes == 0 and scrub.error is None and time.monotonic() < deadline:
                time.sleep(0.002)
            assert scrub.passes == 1 and not scrub.damage, (scrub.error, scrub.damage)

    # The stores -------------------------------------------------------------------------------

    def open(self, mode: str = "a", take_over: bool = False) -> None:
        options = {"take_over": True} if take_over else {}
        self.store = cairn.open(
            self.address, mode, timeout=_TIMEOUT, grace=float(self.cell.grace), **options
        )
        self._open.append(self.store)

    def close(self) -> None:
        if self._open:
            self._open.pop().close()

    def _close_after(self, error: BaseException) -> None:
        if self._open:
            with contextlib.suppress(cairn.Error):
                self._open.pop().__exit__(type(error), error, None)

    def _discard(self) -> None:
        while self._open:
            with contextlib.suppress(cairn.Error):
                self._open.pop()._abandon()
        for address in (self.address, self.other) if self.rank == 0 else ():
            if ":" not in address:
                shutil.rmtree(address, ignore_errors=True)
            elif self.cell.payload == "64 MiB":
                with contextlib.suppress(cairn.Error), cairn.open(
                    address, "a", alone=True, take_over=True, grace=0
                ) as store:
                    store.delete(*store.steps())

    def _files(self) -> dict[str, bytes]:
        """The objects of a directory that nothing changes, without roots and leases."""
        if self.cell.storage != "directory":
            return {}
        return {
            str(path): path.read_bytes()
            for folder in ("segments", "tables", "pages", "pending")
            for path in Path(self.address, folder).rglob("*")
            if path.is_file()
        }

    def _address(self, kind: str, name: str) -> str:
        if kind in ("directory", "memory"):
            return str(self.folder / name) if kind == "directory" else f"memory:{name}"
        address = f"{self._place[kind]}/{self.folder.name}-{name}"
        return self._faults.address(address) if self._faults and "store" in name else address

    def _write_steps(self) -> None:
        how = self.cell.written
        options = {
            "small chunks": {"chunk_bytes": 65536}, "deltas": {"deltas": 8},
            "compressed": {"compress": True},
        }.get(how, {})  # fmt: skip
        if how == "copied":
            self._copy_steps_here()
            return
        for step in (1, 2):
            if how == "streamed":
                self.stream(step, step - 1)
            else:
                self.store.save(step, self.payload(step - 1), **options)
            self.before[step] = self.host(step - 1)
        if how == "compacted":
            self.store.save(3, self.payload(2))
            self.store.delete(3)
            self.on_rank0(lambda: self.store.compact(max_dead=0))

    def _copy_steps_here(self) -> None:
        def copy() -> None:
            with cairn.open(f"memory:source of {self.address}", "a", alone=True) as source:
                for step in (1, 2):
                    source.save(step, nested(self.host(step - 1)))
                cairn.copy_steps(source, self.store)

        self.on_rank0(copy)
        self.before = {1: self.host(0), 2: self.host(1)}

    # Faults -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _fault(self) -> Iterator[None]:
        fault = self.cell.fault
        limit = {"no descriptors": resource.RLIMIT_NOFILE, "no space": resource.RLIMIT_FSIZE}
        if self.rank > 0 or fault == "none":
            yield
        elif fault in limit:
            before = resource.getrlimit(limit[fault])
            count = len(os.listdir("/proc/self/fd")) if fault == "no descriptors" else 0
            resource.setrlimit(limit[fault], (count, before[1]))
            try:
                yield
            finally:
                resource.setrlimit(limit[fault], before)
        else:
            self._faults.arm(fault.split()[-1], writes=fault.startswith("write"))
            try:
                yield
            finally:
                self._faults.arm(None)

    def _check_each(self, store: cairn.Store) -> None:
        for step in store.steps():
            found = store.read(step=step, flat=True)
            choices = [m[step] for m in (self.before, self.after) if step in m]
            assert any(not self._differ(found, choice) for choice in choices), f"step {step}"
        missing = (self.before.keys() & self.after.keys()) - set(store.steps())
        assert not missing, f"lost steps {missing}"
        self.scrub(store)

    def _differ(self, found: dict[str, Any], expected: dict[str, Any]) -> bool:
        if found.keys() != expected.keys():
            return True
        return any(self.differs(found[name], expected[name]) for name in found)

    def _is_done(self) -> bool:
        steps = self.store.steps()
        if self.before is not self.after and steps == sorted(self.after):
            return not any(
                self._differ(self.store.read(step=step, flat=True), self.after[step])
                for step in steps
            ) and self.before.keys() != self.after.keys() and not self.other_after
        return False

    # The comparison ---------------------------------------------------------------------------

    def _check(self, expected: dict[int, dict[str, Any]], is_after: bool) -> None:
        def check() -> None:
            self._check_store(self.address, expected)
            self._check_store(self.other, self.other_after if is_after else self.other_before)

        self.on_rank0(check)

    def _check_store(self, address: str, expected: dict[int, dict[str, Any]]) -> None:
        try:
            store = cairn.open(address, alone=True)
            steps = store.steps()
        except cairn.NotFound:
            assert not expected, f"there is no store {address}"
            return
        with store:
            assert steps == sorted(expected), (address, steps, sorted(expected))
            for step in steps:
                self.compare(store.read(step=step, flat=True), expected[step])
            self.scrub(store)


def _mesh(world_size: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (world_size,) if world_size == 2 else (2, world_size // 2))
