"""Compares Cairn with the checkpoints of a training library, in one process and on one state.

    python bench/integrations.py transformers --dir /mnt/disk/compare [--parameters 25e6]
    python bench/integrations.py accelerate --dir /mnt/disk/compare

A model is trained for ten steps, and each step is saved. Printed are how long the training stood
still for a save (stall: median and longest), the time of the ten steps until all saves were
complete, the time to restore the last one into a new run (resume), and the bytes that the ten saves
occupy. The stall of Cairn in the foreground is the time of a complete save. Neither of the
libraries syncs its files, so their saves end when the system cache has them; Cairn's are durable.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SAVES = 10


class Contender:
    """One way to save. `train` trains, calls `stall` around each save, and returns when all steps
    are complete; `resume` restores the last step into new objects and returns the seconds."""

    def __init__(self, name: str, train: Callable, resume: Callable) -> None:
        self.name, self.train, self.resume = name, train, resume


class Timer:
    """Seconds of the calls of a function."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def around(self, function: Callable) -> Callable:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds.append(time.perf_counter() - start)

        return timed


def bytes_below(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def layers_of(parameters: float) -> tuple[int, int]:
    """Width and number of square layers with about this many parameters."""
    width = 1024 if parameters >= 8e6 else 128
    return width, max(1, round(parameters / width**2))


def network(parameters: float) -> torch.nn.Module:
    torch.manual_seed(0)
    width, count = layers_of(parameters)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(count)))


# --- transformers.Trainer ------------------------------------------------------------------------


class _ModelWithLoss(torch.nn.Module):
    def __init__(self, parameters: float) -> None:
        super().__init__()
        self.layers = network(parameters)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(x) - labels).square().mean()}


def _trainer(folder: Path, parameters: float) -> Any:
    import transformers

    width, _ = layers_of(parameters)
    data = [{"x": torch.ones(width), "labels": torch.zeros(width)}] * (2 * SAVES)
    options = transformers.TrainingArguments(
        output_dir=str(folder / "out"), max_steps=SAVES, per_device_train_batch_size=1,
        save_strategy="steps", save_steps=1, logging_steps=1000, report_to="none", use_cpu=True,
        disable_tqdm=True,
    )
    return transformers.Trainer(_ModelWithLoss(parameters), options, train_dataset=data)


_LOADS = (
    "_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state"
)


def _timed_resume(trainer: Any, checkpoint: str) -> float:
    """Seconds that the trainer needs to restore a checkpoint."""
    timer = Timer()
    for name in _LOADS:
        setattr(trainer, name, timer.around(getattr(trainer, name)))
    trainer.train(resume_from_checkpoint=checkpoint)
    return sum(timer.seconds)


def transformers_contenders(parameters: float) -> list[Contender]:
    from cairn.hf import CairnCallback

    def train_own(folder: Path, stall: Timer) -> None:
        trainer = _trainer(folder, parameters)
        trainer._save_checkpoint = stall.around(trainer._save_checkpoint)
        trainer.train()

    def resume_own(folder: Path) -> float:
        trainer = _trainer(folder, parameters)
        return _timed_resume(trainer, str(folder / "out" / f"checkpoint-{SAVES}"))

    def train_cairn(folder: Path, stall: Timer, async_: bool) -> None:
        trainer = _trainer(folder, parameters)
        with CairnCallback(folder / "store", async_=async_) as checkpoints:
            checkpoints.attach(trainer)
            trainer._save_checkpoint = stall.around(trainer._save_checkpoint)
            trainer.train()

    def resume_cairn(folder: Path) -> float:
        trainer = _trainer(folder, parameters)
        with CairnCallback(folder / "store") as checkpoints:
            start = time.perf_counter()
            checkpoints.attach(trainer)
            found = checkpoints.latest()
            opened = time.perf_counter() - start
            return opened + _timed_resume(trainer, str(found))

    return _own_and_cairn(train_own, resume_own, train_cairn, resume_cairn)


# --- accelerate ----------------------------------------------------------------------------------


def _accelerated(parameters: float) -> tuple[Any, Any, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network(parameters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return accelerator, *accelerator.prepare(model, optimizer)


def _train_accelerated(objects: tuple[Any, Any, Any], save: Callable[[int], None]) -> None:
    accelerator, model, optimizer = objects
    width = model[0].in_features
    for step in range(1, SAVES + 1):
        accelerator.backward(model(torch.ones(1, width)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        save(step)


def accelerate_contenders(parameters: float) -> list[Contender]:
    import cairn.hf

    def train_own(folder: Path, stall: Timer) -> None:
        objects = _accelerated(parameters)
        timed = stall.around(objects[0].save_state)
        _train_accelerated(objects, lambda step: timed(str(folder / "out" / f"step_{step}")))

    def resume_own(folder: Path) -> float:
        timer = Timer()
        timer.around(_accelerated(parameters)[0].load_state)(str(folder / "out" / f"step_{SAVES}"))
        return timer.seconds[0]

    def train_cairn(folder: Path, stall: Timer, async_: bool) -> None:
        objects = _accelerated(parameters)
        with cairn.hf.use_store(objects[0], folder / "store", async_=async_):
            timed = stall.around(objects[0].save_state)
            _train_accelerated(objects, lambda step: timed(f"step_{step}"))

    def resume_cairn(folder: Path) -> float:
        accelerator = _accelerated(parameters)[0]
        start = time.perf_counter()
        with cairn.hf.use_store(accelerator, folder / "store"):
            accelerator.load_state()
            return time.perf_counter() - start

    return _own_and_cairn(train_own, resume_own, train_cairn, resume_cairn)


# --- the comparison ------------------------------------------------------------------------------


def _own_and_cairn(
    train_own: Callable, resume_own: Callable, train_cairn: Callable, resume_cairn: Callable
) -> list[Contender]:
    """Cairn saves in the background, which gives the stall, and once more in the foreground, which
    gives the time of a save."""
    return [
        Contender("own", train_own, resume_own),
        Contender("cairn", lambda folder, stall: train_cairn(folder, stall, True), resume_cairn),
        Contender(
            "cairn, in the foreground",
            lambda folder, stall: train_cairn(folder, stall, False),
            resume_cairn,
        ),
    ]


LIBRARIES = {"transformers": transformers_contenders, "accelerate": accelerate_contenders}


def measure(contender: Contender, folder: Path) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stall = Timer()
    start = time.perf_counter()
    contender.train(folder, stall)
    total = time.perf_counter() - start
    bytes_saved = bytes_below(folder)  # the Trainer trains and saves once more when it resumes
    return {
        "contender": contender.name,
        "stall": statistics.median(stall.seconds),
        "longest stall": max(stall.seconds),
        "total": total,
        "resume": contender.resume(folder),
        "bytes": bytes_saved,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'':28}{'stall ms':>10}{'longest':>10}{'ten saves s':>13}{'resume ms':>11}{'MB':>9}")
    for row in rows:
        print(
            f"{row['contender']:28}{row['stall'] * 1e3:10.1f}{row['longest stall'] * 1e3:10.1f}"
            f"{row['total']:13.2f}{row['resume'] * 1e3:11.1f}{row['bytes'] / 1e6:9.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("--dir", type=Path, required=True, help="an empty directory on the disk")
    parser.add_argument("--parameters", type=float, default=25e6, help="of the model (25e6)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()

    rows = []
    for contender in LIBRARIES[arguments.library](arguments.parameters):
        rows.append(measure(contender, arguments.dir / "integrations"))
        shutil.rmtree(arguments.dir / "integrations")
    if arguments.json:
        json.dump(rows, sys.stdout, indent=2)
    else:
        print_table(rows)


if __name__ == "__main__":
    main()
