"""Libraries that call torch.distributed.checkpoint themselves, with the lines of
docs/integrations/dcp.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cairn.dcp
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnReader, CairnWriter
from ranks import run_on_ranks
from torch.distributed.fsdp import fully_shard

import cairn


def losses_with_accelerate(rank: int, folder: Path, saves: bool) -> list[float]:
    """Calls what `save_state` and `load_state` call for SHARDED_STATE_DICT; accelerate itself uses
    FSDP on GPUs only. Returns the losses after that."""
    from accelerate import FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils import fsdp_utils

    cairn.dcp.register(new=True)
    dcp.FileSystemWriter, dcp.FileSystemReader = CairnWriter, CairnReader
    PartialState(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator = SimpleNamespace(
        num_processes=dist.get_world_size(), process_index=rank, is_main_process=rank == 0,
        is_fsdp2=True, wait_for_everyone=dist.barrier,
    )
    torch.manual_seed(0 if saves else 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def train() -> float:
        loss = model(torch.arange(32.0).view(4, 8).sin()).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    arguments = plugin, accelerator, model, str(folder)
    if saves:
        train()
        fsdp_utils.save_fsdp_model(*arguments)
        fsdp_utils.save_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder))
    else:
        fsdp_utils.load_fsdp_model(*arguments)
        fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, str(folder))
    return [train(), train()]


def test_accelerates_fsdp_saves_stores_and_continues_on_other_ranks(tmp_path):
    pytest.importorskip("accelerate")

    expected = run_on_ranks(losses_with_accelerate, tmp_path / "state", True, world_size=2)

    for world_size in (2, 1):
        state = tmp_path / "state"
        found = run_on_ranks(losses_with_accelerate, state, False, world_size=world_size)
        assert found == expected[:world_size]
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        with cairn.open(tmp_path / "state" / name) as store:
            assert store.steps() == [0]


def test_lightnings_model_parallel_strategy_saves_a_store_and_continues(tmp_path):
    pytest.importorskip("pytorch_lightning")

    def losses(mode: str) -> list[str]:
        program = [sys.executable, Path(__file__).with_name("dcp_program.py")]
        done = subprocess.run(
            [*program, mode, tmp_path / "last.ckpt"], capture_output=True, text=True, timeout=1200
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [line for line in done.stdout.splitlines() if line.startswith("loss 1 ")]

    uninterrupted = losses("save")
    assert (tmp_path / "last.ckpt" / "CAIRN").is_file()
    assert losses("resume") == uninterrupted and len(uninterrupted) == 4
