"""DeepSpeed ZeRO on CPUs: its own checkpoint engine, and Cairn's."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from cairn.trainers.deepspeed import CairnCheckpointEngine  # noqa: E402
from integrations_lib.library import Library  # noqa: E402
from integrations_lib.run import SAVES, Run  # noqa: E402
from integrations_lib.training import Network, digest  # noqa: E402


def _engine(run: Run, stage: int) -> Any:
    deepspeed.init_distributed("gloo", rank=run.rank, world_size=run.ranks)
    network = Network(run.case.parameters, run.case.is_frozen)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1000,
    }
    optimizer = torch.optim.AdamW(network.trained(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config)
    if run.case.is_cairn:
        engine.checkpoint_engine = CairnCheckpointEngine(async_=run.case.is_async)
    return engine


def _digest(engine: Any) -> str:
    """A digest of the parameters, or of the part of this rank, and of the optimizer's part."""
    states = engine.optimizer.optimizer.state.values()
    moments = [v for state in states for _, v in sorted(state.items()) if torch.is_tensor(v)]
    parts = [getattr(p, "ds_tensor", p.data) for p in engine.module.parameters()]
    return digest([*parts, *moments])


def _train(run: Run, stage: int) -> None:
    engine = _engine(run, stage)

    def save() -> None:
        engine.save_checkpoint(str(run.folder))
        if run.case.is_async:
            engine.checkpoint_engine.get_commit_info()  # copies the state, as the next step would

    for _ in range(SAVES):
        engine.backward(_loss(engine))
        engine.step()
        run.save(save, engine.checkpoint_engine.wait if run.case.is_async else None)
    run.digest = _digest(engine)
    if run.case.is_cairn:
        engine.checkpoint_engine.close()
    dist.destroy_process_group()


def _loss(engine: Any) -> torch.Tensor:
    """Through the engine, whose hooks gather the parameters in stage 3."""
    inputs = torch.randn(2, engine.module.width, dtype=torch.bfloat16)
    return (engine(inputs).float() - 1).square().mean()


def _resume(run: Run, stage: int) -> None:
    engine = _engine(run, stage)
    path, _ = run.resume(lambda: engine.load_checkpoint(str(run.folder)))
    assert path is not None and engine.global_steps == SAVES, path
    run.digest = _digest(engine)
    dist.destroy_process_group()


def _library(stage: int) -> Library:
    return Library(
        title=f"DeepSpeed, ZeRO stage {stage}",
        packages=("deepspeed",),
        rivals={"own": "cairn, async"},
        others=("cairn",),
        train=lambda run: _train(run, stage),
        resume=lambda run: _resume(run, stage),
        ranks=2,
        text="`TorchCheckpointEngine` and `CairnCheckpointEngine`, with and without `async_=True`, "
        "in bf16 on two ranks.",
    )


STAGE_2, STAGE_3 = _library(2), _library(3)
