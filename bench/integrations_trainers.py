"""Compares the checkpoints of trainers with those that Cairn saves for them, in the same run.

    python bench/integrations_trainers.py lightning --dir /mnt/disk/compare --mib 64

Prints one JSON object per variant: seconds that the training waits for a save (stall), until the
checkpoint is durable (save), and to load it (resume), each the median of ten, and the bytes of ten
checkpoints. `--frozen` is the part of the parameters that does not change between saves. Every
process is a single rank.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

SAVES = 10


class Variant(NamedTuple):
    """One way to save."""

    name: str
    save: Callable[[int], None]
    """Saves a step, and returns when the training may continue."""
    finish: Callable[[], None]
    """Waits until the step is durable."""
    load: Callable[[int], None]


class Training:
    """A model and AdamW, without a forward pass: a step adds noise to what is not frozen."""

    def __init__(self, mib: int, frozen: float) -> None:
        torch.manual_seed(0)
        width = 1024
        count = max(2, (mib << 20) // (4 * width * width))
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count)))
        for layer in self.model[: int(count * frozen)]:
            layer.requires_grad_(False)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-3)
        self.step()

    def step(self) -> None:
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()


def sync(path: Path) -> None:
    """Writes the files of a library that does not do so itself."""
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def lightning(training: Training, folder: Path) -> Iterator[Variant]:
    """`CheckpointIO.save_checkpoint`, as Lightning's strategies call it."""
    from lightning_fabric.plugins import TorchCheckpointIO
    from pytorch_lightning.plugins.io import AsyncCheckpointIO

    from cairn.trainers.lightning import CairnCheckpointIO

    plugins: dict[str, Any] = {
        "TorchCheckpointIO": TorchCheckpointIO(),
        "AsyncCheckpointIO": AsyncCheckpointIO(TorchCheckpointIO()),
        "CairnCheckpointIO": CairnCheckpointIO(),
        "CairnCheckpointIO(async_=True)": CairnCheckpointIO(async_=True),
    }
    for name, plugin in plugins.items():
        where = folder / name

        def save(step: int, plugin: Any = plugin, where: Path = where) -> None:
            optimizers = [training.optimizer.state_dict()]
            state = {"global_step": step, "state_dict": training.model.state_dict()}
            state["optimizer_states"] = optimizers
            plugin.save_checkpoint(state, where / f"{step}.ckpt")

        def load(step: int, plugin: Any = plugin, where: Path = where) -> None:
            found = plugin.load_checkpoint(where / f"{step}.ckpt")
            training.model.load_state_dict(found["state_dict"])

        def finish(plugin: Any = plugin, where: Path = where) -> None:
            plugin.teardown()
            if "Cairn" not in type(plugin).__name__:
                sync(max(where.iterdir(), key=lambda path: path.stat().st_mtime_ns))

        yield Variant(name, save, finish, load)


def torchtitan(training: Training, folder: Path) -> Iterator[Variant]:
    """The checkpoint manager with FSDP2 on one rank."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torchtitan.components.checkpoint import CheckpointManager
    from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

    from cairn.trainers.torchtitan import CairnCheckpointManager

    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=0, world_size=1)
    fully_shard(training.model)
    optimizers = default_adamw(implementation="for-loop").build(model_parts=[training.model])
    schedulers = LRSchedulersContainer.Config(warmup_steps=2).build(
        optimizers=optimizers, training_steps=100
    )
    training.optimizer = optimizers
    training.step()
    for kind in (CheckpointManager, CairnCheckpointManager):
        for mode in ("disabled", "async"):
            name = f"{kind.__name__}({mode})"
            manager = kind.Config(
                enable=True, interval=1, keep_latest_k=0, async_mode=mode, folder="steps",
                last_save_model_only=False,
            ).build(
                dataloader=None, model_parts=[training.model], optimizers=optimizers,
                lr_schedulers=schedulers, states={}, sd_adapter=None,
                base_folder=str(folder / name),
            )
            manager.states.pop("dataloader")

            def finish(manager: Any = manager, where: Path = folder / name / "steps") -> None:
                manager.maybe_wait_for_saving()
                if type(manager) is CheckpointManager:
                    sync(max(where.iterdir(), key=lambda path: path.stat().st_mtime_ns))

            yield Variant(name, manager.save, finish, manager.load)
            manager.close()
    dist.destroy_process_group()


def deepspeed(training: Training, folder: Path) -> Iterator[Variant]:
    """ZeRO stage 2 on one rank."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed as library

    from cairn.trainers.deepspeed import CairnCheckpointEngine

    environment = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": "29561"}
    os.environ.update(environment)
    library.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True,
    }
    engine, *_ = library.initialize(
        model=training.model, optimizer=training.optimizer, config=config
    )

    def step() -> None:
        loss = engine(torch.randn(1, 1024, dtype=torch.bfloat16)).float().square().mean()
        engine.backward(loss)
        engine.step()

    training.step = step  # type: ignore[method-assign]
    for name, own in (("TorchCheckpointEngine", engine.checkpoint_engine),
                      ("CairnCheckpointEngine", CairnCheckpointEngine())):
        where = folder / name

        def save(number: int, own: Any = own, where: Path = where) -> None:
            engine.checkpoint_engine = own
            engine.save_checkpoint(str(where), tag=f"global_step{number}")

        def load(number: int, own: Any = own, where: Path = where) -> None:
            engine.checkpoint_engine = own
            engine.load_checkpoint(str(where), tag=f"global_step{number}")

        def finish(name: str = name, where: Path = where) -> None:
            if name == "TorchCheckpointEngine":
                sync(max(where.glob("global_step*"), key=lambda path: path.stat().st_mtime_ns))

        yield Variant(name, save, finish, load)


TRAINERS = {function.__name__: function for function in (lightning, torchtitan, deepspeed)}


def measure(variant: Variant, training: Training) -> dict[str, Any]:
    stalls, saves, loads = [], [], []
    for step in range(1, SAVES + 1):
        training.step()
        begin = time.perf_counter()
        variant.save(step)
        stalls.append(time.perf_counter() - begin)
        variant.finish()
        saves.append(time.perf_counter() - begin)
    for _ in range(3):
        begin = time.perf_counter()
        variant.load(SAVES)
        loads.append(time.perf_counter() - begin)
    medians = {"stall": stalls, "save": saves, "resume": loads}
    return {name: round(statistics.median(values), 4) for name, values in medians.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trainer", choices=TRAINERS)
    parser.add_argument("--dir", type=Path, required=True, help="folder for the checkpoints")
    parser.add_argument("--mib", type=int, default=64, help="MiB of parameters; AdamW has twice it")
    parser.add_argument("--frozen", type=float, default=0.0)
    arguments = parser.parse_args()

    folder = arguments.dir / arguments.trainer
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    training = Training(arguments.mib, arguments.frozen)
    for variant in TRAINERS[arguments.trainer](training, folder):
        before = bytes_in(folder)
        result = measure(variant, training)
        result["bytes"] = bytes_in(folder) - before
        names = {"trainer": arguments.trainer, "variant": variant.name}
        print(json.dumps({**names, **result}), flush=True)


if __name__ == "__main__":
    main()
