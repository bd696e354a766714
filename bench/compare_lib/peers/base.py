"""What a peer is: a name, a directory, and a method for each kind of work that it can do.

Methods are generators, so that only what counts is timed:

    def load_new(self, state):
        library = importlib.import_module("library")    # not timed
        yield
        tensors = library.load(self.path)               # timed
        yield tensors                                   # what was loaded, a function that loads
                                                        # what was saved, or None
        library.close()                                 # not timed

Every call runs in a process of its own. A method that a peer lacks is a dash in the tables, and
`cannot` says why.
"""

from __future__ import annotations

import importlib
import os
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
NO_INCREMENT = "has no incremental save: it writes everything again, as in the full save"
EVERYTHING_STAGED = "copies everything, whatever changed: see the row where all of it did"


@dataclass
class Reported:
    """What a program that was run says of itself, which leaves out its start."""

    seconds: float
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None


class Peer:
    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    """What has to be importable, or the peer is left out with a word."""
    package: ClassVar[str | None] = None
    """The distribution whose version is shown."""
    is_limit: ClassVar[bool] = False
    """It measures the machine, not a library."""
    is_direct: ClassVar[bool] = False
    """It writes past the page cache."""
    saved_by: ClassVar[str | None] = None
    """The peer whose checkpoint this one reads, if it is not its own."""
    cannot: ClassVar[dict[str, str]] = {}
    """Method: why there is none."""
    cannot_partly: ClassVar[dict[str, str]] = {}
    """Name of a work: why it is left out, though there is the method."""
    remarks: ClassVar[tuple[str, ...]] = ()
    """Settings, and whatever a reader of the tables should know."""

    # Methods that a peer may have; all but `save_async` are as described above:
    #   save(state)                        a durable full save
    #   load_new(state)                    all of it, into new tensors
    #   load_existing(state, targets)      all of it, into these tensors
    #   load_keys(state, keys)             only these keys, from opening on
    #   load_slices(state, slices)         these boxes, from opening on
    #   second_save(state, keys)           a durable save after these keys changed
    #   save_async(state, keys)            returns a function: see compare_lib/stall.py
    #   make_metadata(chunks)              makes a checkpoint of so many chunks, untimed, no steps
    #   open_metadata(chunks)              opens that and looks up one key
    #   ranks_save(state), ranks_load(state)    see compare_lib/rank_jobs.py

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        """Where its checkpoint is; all below it is evicted and warmed."""
        self.scratch = directory / "scratch"
        """Empty before each measurement, removed after it."""

    def can(self, method: str) -> bool:
        return hasattr(self, method)

    @classmethod
    def missing(cls) -> str | None:
        """Why it cannot be measured here; None if it can."""
        for module in cls.modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                return f"{error} (pip install -r bench/requirements.txt)"
        return None


def sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def empty_boxes(state: State, slices: Slices) -> Tensors:
    """New tensors for these boxes."""
    return {
        key: torch.empty([end - begin for begin, end in ranges], dtype=state.tensors[key].dtype)
        for key, ranges in slices.items()
    }


def cut(tensor: Any, ranges: Ranges) -> Any:
    """A box of a tensor as a tensor of its own."""
    return tensor[tuple(slice(begin, end) for begin, end in ranges)].clone()
