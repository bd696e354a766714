"""Base class of peers: a name, a directory, and a method for each workload that the peer supports.

Methods are generators, so that only the relevant part is timed:

    def load_new(self, state):
        library = importlib.import_module("library")    # not timed
        yield
        tensors = library.load(self.path)               # timed
        yield tensors                                   # the loaded tensors, a function that
                                                        # loads what was saved, or None
        library.close()                                 # not timed

Every call runs in a separate process. A method that a peer does not have is shown as a dash in the
tables, and `cannot` contains the reason.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from compare_lib.states import Ranges, State, Tensors

Steps = Generator[Any, None, None]
Slices = dict[str, Ranges]
Finish = Callable[[], None]

KV_BENCH = Path(__file__).resolve().parents[3] / "build" / "bin" / "kv-bench"
THREADS = min(8, os.cpu_count() or 1)
NO_INCREMENT = "has no incremental save: writes everything again, as in the full save"
NOT_OF_DCP = "is not a storage of torch.distributed.checkpoint"
EVERYTHING_STAGED = "copies everything, regardless of what changed: see the stall with all changed"


@dataclass
class Reported:
    """Figures that a separate program reports about itself, without the time to start it."""

    seconds: float
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None


class Peer:
    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    """Modules that must be importable; otherwise, the peer is skipped with a message."""
    package: ClassVar[str | None] = None
    """The Python distribution whose version is shown."""
    is_limit: ClassVar[bool] = False
    """It measures the machine, not a library."""
    is_direct: ClassVar[bool] = False
    """It writes past the page cache."""
    saved_by: ClassVar[str | None] = None
    """The peer whose checkpoint this one reads, if it does not write one itself."""
    cannot: ClassVar[dict[str, str]] = {}
    """Maps a method to the reason why the peer does not have it."""
    cannot_partly: ClassVar[dict[str, str]] = {}
    """Maps a workload to the reason why it is skipped although the peer has the method."""
    remarks: ClassVar[tuple[str, ...]] = ()
    """Settings and other information for readers of the tables."""
    only_states: ClassVar[tuple[str, ...] | None] = None
    """The states to which the peer is applied; None: all."""

    # Methods that a peer may have, generators as described above unless stated otherwise:
    #   save(state)                        a durable full save
    #   load_new(state)                    a full load into new tensors
    #   load_existing(state, targets)      a full load into these tensors
    #   load_keys(state, keys)             a load of only these keys, including the open
    #   load_slices(state, slices)         a load of these boxes, including the open
    #   second_save(state, keys)           a durable save after these keys changed
    #   save_async(state, keys)            returns a function; see compare_lib/repeated.py
    #   save_async_stated(state, keys)     as save_async; the caller states what has not changed
    #   small_saves(state)                 returns a function; see compare_lib/repeated.py
    #   dcp_saves_and_loads(state)         100 saves and loads of torch.distributed.checkpoint
    #   make_metadata(chunks)              creates a checkpoint; not timed, not a generator
    #   open_metadata(chunks)              opens this checkpoint and looks up one key
    #   import_package()                   imports the library; see time_import
    #   ranks_save(state), ranks_load(state)    see compare_lib/rank_jobs.py

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """Contains the checkpoint; all files below it are evicted and warmed."""
        self.scratch = directory / "scratch"
        """Empty before each measurement, removed after it."""

    def can(self, method: str) -> bool:
        return hasattr(self, method)

    @classmethod
    def missing(cls) -> str | None:
        """Returns why the peer cannot be measured here; None if it can."""
        for module in cls.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                return f"{error} (pip install -r bench/requirements.txt)"
        return None


_TIME_IMPORT = """
import sys, time
times = time.perf_counter(), time.process_time()
__import__(sys.argv[1])
print(time.perf_counter() - times[0], time.process_time() - times[1])
"""


def time_import(module: str) -> Steps:
    """Imports a module in a new interpreter. The time to start it is not part of the figures."""
    yield
    command = [sys.executable, "-c", _TIME_IMPORT, module]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.check_output(command, env=environment, text=True)
    yield Reported(*map(float, output.split()))


def sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Makes a new file and its name durable."""
    sync_path(path)
    sync_path(path.parent)


def empty_boxes(state: State, slices: Slices) -> Tensors:
    """Allocates tensors for these boxes."""
    return {
        key: torch.empty([end - begin for begin, end in ranges], dtype=state.tensors[key].dtype)
        for key, ranges in slices.items()
    }


def cut(tensor: Any, ranges: Ranges) -> Any:
    """Copies a box of a tensor into a new tensor."""
    return tensor[tuple(slice(begin, end) for begin, end in ranges)].clone()
