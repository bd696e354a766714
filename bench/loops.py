#!/usr/bin/env python
"""Compares training loops that save and resume: the lines that a user writes, and what they cost.

    .venv/bin/python bench/loops.py --dir /mnt/disk/loops

Each loop trains the same model, and saves model, optimizer and scheduler at every step. Another
process resumes from files that are not in the page cache and continues; its losses have to equal
those of a training that was not interrupted, bit for bit. Prints a table. The libraries take turns.
Needs the packages of bench/requirements.txt.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from common import report
from common.measure import evict, files_of, sync_tree

SAVES, RESUMED = 4, 2
MIB = 1 << 20


class Training:
    """A model with an optimizer that changes every value at each step."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(10)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 100)
        self._width = width

    def train_one_step(self, step: int) -> str:
        batch = torch.randn(8, self._width, generator=torch.Generator().manual_seed(step))
        self.optimizer.zero_grad()
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        return loss.item().hex()


class Loop:
    """What a user writes: how a loop resumes, and saves. `save` returns a function that waits until
    the save is durable."""

    def __init__(self, training: Training) -> None:
        self.model, self.optimizer = training.model, training.optimizer
        self.scheduler = training.scheduler

    def resume(self) -> int:
        raise NotImplementedError

    def save(self, step: int) -> Any:
        raise NotImplementedError


class CairnLoop(Loop):
    def resume(self) -> int:
        import cairn.torch

        self.store = cairn.open("run", mode="a")
        self.parts = dict(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        return cairn.torch.resume(self.store, **self.parts)

    def save(self, step: int) -> Any:
        import cairn.torch

        return cairn.torch.save(self.store, step, async_=True, **self.parts).result


class MoonclipLoop(Loop):
    def resume(self) -> int:
        from moonclip.pytorch import CheckpointManager

        self.manager = CheckpointManager("run")
        self.parts = dict(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        return self.manager.resume(**self.parts)

    def save(self, step: int) -> Any:
        self.manager.save(step=step, **self.parts)
        return self.manager.flush


class TorchLoop(Loop):
    def resume(self) -> int:
        self.parts = dict(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler)
        if not os.path.exists("run/latest.pt"):
            os.makedirs("run", exist_ok=True)
            return 0
        saved = torch.load("run/latest.pt")
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        return saved["step"] + 1

    def save(self, step: int) -> Any:
        state = {name: part.state_dict() for name, part in self.parts.items()}
        with open("run/new.pt", "wb") as file:
            torch.save({**state, "step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace("run/new.pt", "run/latest.pt")
        return lambda: None


class DcpLoop(Loop):
    def resume(self) -> int:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import state_dict

        steps = [int(path.parent.name) for path in Path("run").glob("*/.metadata")]
        if not steps:
            return 0
        state = self.state()
        dcp.load(state, checkpoint_id=f"run/{max(steps)}")
        state_dict.set_model_state_dict(self.model, state["model"])
        state_dict.set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
        return max(steps) + 1

    def state(self) -> dict[str, Any]:
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": self.scheduler}

    def save(self, step: int) -> Any:
        import torch.distributed.checkpoint as dcp

        return dcp.async_save(self.state(), checkpoint_id=f"run/{step}").result


MODULES = {
    "Cairn": "cairn.torch",
    "moonclip": "moonclip.pytorch",
    "torch.save": "torch",
    "DCP": "torch.distributed.checkpoint.state_dict",
}
LOOPS = {"Cairn": CairnLoop, "moonclip": MoonclipLoop, "torch.save": TorchLoop, "DCP": DcpLoop}


def lines_of(kind: type[Loop]) -> int:
    """The lines of the bodies of a loop's functions, without imports."""
    source = inspect.getsource(kind).splitlines()[1:]
    return sum(
        bool(line.strip()) and not line.lstrip().startswith(("def ", "import ", "from "))
        for line in source
    )


def run(name: str, width: int, steps: int) -> dict[str, Any]:
    """Resumes, and trains up to a number of steps; in the directory that contains `run`."""
    importlib.import_module(MODULES[name])  # which is not measured
    training = Training(width)
    loop = LOOPS[name](training)
    begin = time.perf_counter()
    start = loop.resume()
    found: dict[str, Any] = {"start": start, "load": time.perf_counter() - begin}
    found |= {"stall": [], "durable": [], "losses": []}
    for step in range(start, steps):
        found["losses"].append(training.train_one_step(step))
        begin = time.perf_counter()
        wait = loop.save(step)
        found["stall"].append(time.perf_counter() - begin)
        wait()
        found["durable"].append(time.perf_counter() - begin)
    return found


def trial(name: str, width: int, folder: Path, losses: list[str]) -> dict[str, float]:
    """Trains, resumes in another process, and compares the losses."""

    def in_child(steps: int) -> dict[str, Any]:
        command = [sys.executable, __file__, "--child", name, str(width), str(steps)]
        ended = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(ended.stdout.splitlines()[-1])

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    first = in_child(SAVES)
    nbytes = sum(path.stat().st_blocks * 512 for path in files_of(folder))
    sync_tree(folder)
    evict(folder)
    second = in_child(SAVES + RESUMED)
    if second["start"] != SAVES or first["losses"] + second["losses"] != losses:
        sys.exit(f"loops.py: {name} does not continue as an uninterrupted training does")
    kept = 1 if name == "torch.save" else SAVES
    return {
        "stall": statistics.median(first["stall"][1:]),
        "durable": statistics.median(first["durable"][1:]),
        "load": second["load"],
        "bytes": nbytes / kept,
    }


def table(results: dict[str, list[dict[str, float]]]) -> str:
    rows = []
    for name, runs in results.items():
        middle = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
        times = [report.seconds(middle[key]) for key in ("stall", "durable", "load")]
        rows.append([name, str(lines_of(LOOPS[name])), *times, report.size(middle["bytes"])])
    return report.table(("", "lines", "stall", "durable after", "cold load", "a step"), rows)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        name, *numbers = sys.argv[2:]
        print(json.dumps(run(name, *map(int, numbers))))
        return
    parser = report.options(__doc__)
    add = parser.add_argument
    add("loops", nargs="*", metavar="LOOP", help=f"by default all: {', '.join(LOOPS)}")
    add("--width", type=int, default=2048, help="of ten layers (2048: a state of 480 MiB)")
    add("--repeat", type=int, default=3, help="how often each loop is run (3)")
    options = report.parse(parser)
    names = options.loops or list(LOOPS)
    if unknown := sorted(set(names) - LOOPS.keys()):
        parser.error(f"unknown loops {unknown}; there are {list(LOOPS)}")
    training = Training(options.width)
    losses = [training.train_one_step(step) for step in range(SAVES + RESUMED)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="loops-", dir=options.dir) as scratch:
        for _ in range(options.repeat):
            for name in names:
                found[name].append(trial(name, options.width, Path(scratch) / "run", losses))
                print(f"{name}: {found[name][-1]}", file=sys.stderr, flush=True)
    about = report.describe(options.dir, ["moonclip"])
    result = about | {"loops": found}
    report.write(options.out / "loops", "Loops that resume", result, [table(found)])


if __name__ == "__main__":
    main()
