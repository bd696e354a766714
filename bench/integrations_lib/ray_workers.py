"""Ray Train: checkpoints that Ray copies to its storage, and checkpoints that name a step."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import cairn
from cairn.trainers.ray import locate_checkpoint, save_checkpoint
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Case, Run
from integrations_lib.training import Network, training_digest

PATHS = [str(Path(__file__).resolve().parents[1]), str(Path(cairn.__file__).resolve().parents[1])]
WORKERS = 2


class _Job:
    """What each worker trains: DDP, so that both have the same state."""

    def __init__(self, run: Run) -> None:
        self.network = Network(run.case.parameters, run.case.is_frozen)
        self.model: torch.nn.Module = self.network
        if torch.distributed.is_initialized():
            self.model = torch.nn.parallel.DistributedDataParallel(self.network)
        self.optimizer = torch.optim.AdamW(self.network.trained(), lr=1e-3)

    def step(self) -> None:
        inputs = torch.randn(2, self.network.width)
        (self.model(inputs) - 1).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {"model": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def digest(self) -> str:
        return training_digest(self.network, self.optimizer)


def _report_own(run: Run, job: _Job) -> None:
    """As Ray's documentation: rank 0 saves with torch.save, and Ray copies the directory."""
    if run.rank > 0:
        ray.train.report({}, checkpoint=None)
        return
    with tempfile.TemporaryDirectory(dir=run.folder.parent) as folder:
        torch.save(job.state(), os.path.join(folder, "state.pt"))
        ray.train.report({}, checkpoint=Checkpoint.from_directory(folder))


def _train_worker(run: Run) -> None:
    job = _Job(run)
    if not run.case.is_cairn:
        for _ in range(SAVES):
            job.step()
            run.save(lambda: _report_own(run, job))
    else:
        with cairn.open(run.folder / "store", mode="a") as store:
            for step in range(1, SAVES + 1):
                job.step()
                run.save(
                    lambda step=step: ray.train.report(
                        {}, checkpoint=save_checkpoint(store, step, job.state())
                    )
                )
    run.digest = job.digest()


def _worker(config: dict[str, Any]) -> None:
    """In a process of Ray."""
    rank = ray.train.get_context().get_world_rank()
    torch.set_num_threads(1)
    run = Run(Case(**config["case"]), Path(config["folder"]), rank, WORKERS)
    _train_worker(run)
    Path(config["answer"].format(rank=rank)).write_text(json.dumps(run.result()))


def train(run: Run) -> None:
    """Runs the workers. The figures are those of the slower one."""
    answer = str(run.folder.parent / "worker-{rank}.json")
    os.environ["PYTHONPATH"] = os.pathsep.join(PATHS)
    ray.init(num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False)
    case = {name: getattr(run.case, name) for name in run.case.__dataclass_fields__}
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"case": case, "folder": str(run.folder), "answer": answer},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="results", storage_path=str(run.folder)),
    )
    try:
        trainer.fit()
    finally:
        ray.shutdown()
    results = [json.loads(Path(answer.format(rank=rank)).read_text()) for rank in range(WORKERS)]
    assert len({one["digest"] for one in results}) == 1
    figures = zip(*(one["saves"] for one in results))
    run.saves = [{name: max(one[name] for one in both) for name in both[0]} for both in figures]
    run.digest = results[0]["digest"]


def resume(run: Run) -> None:
    """What a worker does with the checkpoint that Ray gives it."""
    job = _Job(run)
    found = (run.folder / "results").glob("checkpoint_*")
    checkpoint = Checkpoint(str(max(path for path in found if path.is_dir())))

    def load_own() -> None:
        with checkpoint.as_directory() as folder:
            job.restore(torch.load(os.path.join(folder, "state.pt")))

    def load_cairn() -> None:
        address, step = locate_checkpoint(checkpoint)
        with cairn.open(address) as store:
            state: dict[str, Any] = store.read(step=step)
        job.restore(state)

    run.resume(load_cairn if run.case.is_cairn else load_own)
    run.digest = job.digest()


LIBRARY = Library(
    title="Ray Train",
    packages=("ray",),
    rivals={"own": "cairn"},
    train=train,
    resume=resume,
    text="Two workers with DDP. Ray's own checkpoints are directories, in which rank 0 saves with "
    "`torch.save`, and which `ray.train.report` copies to its storage. With Cairn, both save "
    "a step with `save_checkpoint`. A stall includes `report`, which waits for Ray's controller. A "
    "resume is what one worker does with its checkpoint.",
)
