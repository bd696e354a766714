"""The base of all libraries that are compared: one class each, for disks, buckets and kills.

An object works in one place, in a child process that ends afterwards. If a library does not have a
method, `cannot` contains the reason. The programs time:

    save(step, state)                a full save; the program calls `sync` in the measured time
    save_again(step, state)          a save of which the library writes what has changed
    replace(step, state)             a save with the number of one that exists
    load(step, like)                 a full load into new tensors; `like` has their shapes
    load_into(step, targets)         a full load into these tensors
    load_keys(step, like, keys)      a load of only these keys, including the open
    load_boxes(step, like, boxes)    a load of these boxes, including the open
    begin_save(step, state)          returns two functions that wait: until the caller may change
                                     its tensors, and until the save is complete
    begin_save_stating(step, state, keys)    the same; states that only these keys have changed
    make_many(chunks), open_many(chunks)     a checkpoint of many chunks, of which one key is read

`latest()` returns the newest step that the library considers complete. A method of a limit may
return the seconds that a program reports about itself, without the time to start it.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from common.measure import sync_tree
from common.states import Boxes, Tensors

KV_BENCH = Path(__file__).resolve().parents[2] / "build" / "bin" / "kv-bench"
THREADS = min(8, os.cpu_count() or 1)
NO_ASYNC = "has no call that copies the state and then returns"
EVERYTHING_STAGED = "copies everything, regardless of what changed: see the stall with all changed"
CANNOT = {
    "save_again": "has no incremental save: writes everything again, as in the full save",
    "load_into": "can only create new tensors",
    "begin_save": NO_ASYNC,
    "begin_save_stating": NO_ASYNC,
    "open_many": "has no list of chunks to load",
}
"""Why libraries do not have a method, unless they state another reason."""

Saving = tuple[Callable[[], None], Callable[[], None]]
"""Wait until the tensors may change, and until the save is complete."""


class Library:
    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    """Must be importable; otherwise, the library is skipped with a message. The time to import the
    first one is measured."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Whose versions are stated."""
    remark: ClassVar[str] = ""
    """Settings and other information for readers of the tables."""
    reads: ClassVar[str | None] = None
    """The library whose checkpoints this one reads, if it does not write any itself."""
    is_durable: ClassVar[bool] = False
    """Its saves are durable by themselves, so that `sync` does nothing."""
    suffix: ClassVar[str] = ""
    """Of the file of a step; none: a directory."""
    is_limit: ClassVar[bool] = False
    """It measures the machine, not a library."""
    states: ClassVar[tuple[str, ...] | None] = None
    """The states of compare.py to which it is applied; None: all but the small one."""
    cannot: ClassVar[dict[str, str]] = {}
    """Maps a method, or a workload of compare.py, to the reason why it is not measured."""

    def __init__(self, place: str | Path, device: str | None = None) -> None:
        self.place = place
        """A directory, or the address of a prefix in a bucket."""
        self.device = device
        """For gpu.py: where the tensors are, and where loads create them; None: in memory."""
        self.folder = Path(place)
        self.lib: Any = importlib.import_module(self.modules[0]) if self.modules else None

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:06}{self.suffix}"

    def start(self, state: Tensors, saves: bool) -> None:
        """Imports and opens what is not part of a measurement."""

    def prepare(self, state: Tensors) -> Any:
        """Converts tensors to what `save` saves."""
        return state

    def sync(self, step: int) -> None:
        """Makes a step durable that the library has saved."""
        if not self.is_durable:
            sync_tree(self.path(step))

    def forget(self, step: int) -> None:
        """Removes a step, so that its files do not fill the disk."""
        shutil.rmtree(self.path(step))

    def finish(self) -> None:
        """Ends what is not part of a measurement."""

    @classmethod
    def missing(cls) -> str | None:
        """Returns why the library cannot be measured here; None if it can."""
        for module in cls.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                return f"{error} (pip install -r bench/requirements.txt)"
        return None

    @classmethod
    def is_record(cls, path: Path) -> int:
        """How many of the first bytes of a file describe the checkpoint, without tensors' values.
        Small files are records."""
        nbytes = path.stat().st_size
        return nbytes if nbytes <= 256 << 10 else 0


# Cairn --------------------------------------------------------------------------------------------


class _CairnReads(Library):
    modules = ("cairn",)
    how: ClassVar[dict[str, Any]] = {}
    _store: Any = None

    def _open(self, mode: str = "r") -> Any:
        if self._store is None:
            # Nobody reads the steps that are deleted, and their files would fill the disk.
            more = {"grace": 0, "take_over": True} if mode == "a" else {}
            self._store = self.lib.open(self.place, mode=mode, **more)
        return self._store

    def load(self, step: int, like: Tensors) -> Tensors:
        return self._open().read(step=step, flat=True, device=self.device, **self.how)

    def load_keys(self, step: int, like: Tensors, keys: list[str]) -> Tensors:
        return self._open().read(keys, step=step, flat=True, **self.how)

    def finish(self) -> None:
        if self._store is not None:
            self._store.close()


class Cairn(_CairnReads):
    name = "cairn"
    is_durable = True
    remark = "every byte that is read is verified with its digest; all saves are durable"

    def start(self, state: Tensors, saves: bool) -> None:
        if saves:
            self._open("a")

    def save(self, step: int, state: Tensors) -> None:
        self._open("a").save(step, state)

    save_again = save

    def replace(self, step: int, state: Tensors) -> None:
        self._open("a").save(step, state, overwrite=True)

    def load_into(self, step: int, targets: Tensors) -> None:
        self._open().load(targets, step=step)

    def load_boxes(self, step: int, like: Tensors, boxes: Boxes) -> Tensors:
        return self._open().read_slices(boxes, step=step)

    def begin_save(self, step: int, state: Tensors, **options: Any) -> Saving:
        handle = self._store.save_async(step, state, **options)
        stream = torch.cuda.current_stream() if self.device == "cuda" else None
        return lambda: handle.wait_staged(stream), handle.result

    def begin_save_stating(self, step: int, state: Tensors, keys: list[str]) -> Saving:
        # The first save has no base, so it must not state anything.
        unchanged = ["**", *(f"!{key}" for key in keys)] if step > 1 else None
        tuning = self.lib.SaveTuning(unchanged=unchanged)
        return self.begin_save(step, state, tuning=tuning)

    def make_many(self, chunks: int) -> None:
        command = [KV_BENCH, "open", "--chunks", str(chunks), "--dir", self.place, "--repeat", "1"]
        subprocess.run(command, check=True)

    def open_many(self, chunks: int) -> None:
        with self.lib.open(self.folder / f"open-{chunks}") as store:
            store.read("layer.000000.weight", flat=True)

    def latest(self) -> int | None:
        return max(self._open().steps(), default=None)

    def forget(self, step: int) -> None:
        self._store.delete(step)


class CairnMapped(_CairnReads):
    name = "cairn mmap"
    reads = "cairn"
    how = {"mmap": True}
    remark = "read(mmap=True): digests are verified, nothing is copied"
    cannot = dict.fromkeys(
        (*CANNOT, "save", "load_boxes", "import"), "differs from cairn only in reading"
    )


class CairnLazy(CairnMapped):
    name = "cairn lazy"
    how = {"mmap": True, "verify": "lazy"}
    remark = (
        'read(mmap=True, verify="lazy"): as cairn mmap, but digests are verified in the background '
        "after the measured time"
    )
    cannot = CairnMapped.cannot | {"keys": "see cairn mmap"}

    def finish(self) -> None:
        self._store.wait_verified()
        super().finish()
