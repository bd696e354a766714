"""What one rank of a run measures: its saves, or its resume."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

SAVES = 10


@dataclass(frozen=True)
class Case:
    """What is measured."""

    library: str
    contender: str
    """`own` or `cairn`, with `, async` if it saves in the background, and the like."""
    parameters: float
    is_frozen: bool

    @property
    def is_cairn(self) -> bool:
        return self.contender.startswith("cairn")

    @property
    def is_async(self) -> bool:
        return self.contender.endswith("async")


@dataclass
class Run:
    """One rank of a job that trains and saves, or that resumes.

    The same loop is measured for all contenders. Each save begins when the one before is durable,
    on all ranks at once, so that it does not wait for another one.
    """

    case: Case
    folder: Path
    """Where the contender saves; nothing else is in it."""
    rank: int
    ranks: int
    saves: list[dict[str, float]] = field(default_factory=list)
    resume_seconds: float = 0.0
    digest: str = ""
    _synced: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def save(self, save: Callable[[], Any], finish: Callable[[], Any] | None = None) -> None:
        """Measures a save. `save` returns when the training may continue, `finish` when the library
        considers the save complete."""
        self._barrier()
        begin = time.perf_counter()
        save()
        stall = time.perf_counter() - begin
        if finish is not None:
            finish()
        saved = time.perf_counter() - begin
        durable = saved if self.case.is_cairn else saved + self._sync()
        self.saves.append({"stall": stall, "saved": saved, "durable": durable})

    def resume(self, load: Callable[[], Any]) -> Any:
        """Measures how long `load` takes. Several calls are added."""
        self._barrier()
        begin = time.perf_counter()
        result = load()
        self.resume_seconds += time.perf_counter() - begin
        return result

    def result(self) -> dict[str, Any]:
        return {"saves": self.saves, "resume": self.resume_seconds, "digest": self.digest}

    def _barrier(self) -> None:
        if self.ranks > 1 and dist.is_initialized():
            dist.barrier()

    def _sync(self) -> float:
        """Syncs what has changed since the last call, divided among the ranks. Returns seconds."""
        self._barrier()
        changed = []
        for path in sorted([self.folder, *self.folder.rglob("*")]):
            status = path.lstat()
            version = (status.st_mtime_ns, status.st_size)
            if self._synced.get(path) != version and not path.is_symlink():
                self._synced[path] = version
                changed.append(path)
        begin = time.perf_counter()
        for path in changed[self.rank :: self.ranks]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return time.perf_counter() - begin


class Resumed(Exception):
    """Ends a trainer that would continue after it has resumed."""
