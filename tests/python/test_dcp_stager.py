"""`cairn.torch.CairnStager` under `torch.distributed.checkpoint.async_save`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import AsyncStager

import cairn
from cairn.torch import CairnStager

# torch warns that there is no process group, which these tests intend.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def load(path: Path, like: dict) -> dict:
    state = {key: torch.empty_like(value) for key, value in like.items()}
    dcp.load(state, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    return state


def test_it_has_what_torch_asks_of_a_stager():
    stager = CairnStager()
    assert isinstance(stager, AsyncStager)
    assert stager.should_synchronize_after_execute is False
    stager.synchronize_staging()
    stager.close()
    stager.close()


def test_in_the_background_a_future_tells_when_the_state_may_change(tmp_path):
    state = {"w": torch.arange(1000.0)}
    stager = CairnStager(background=True)
    response = dcp.async_save(
        state,
        storage_writer=dcp.FileSystemWriter(tmp_path / "c"),
        async_stager=stager,
        no_dist=True,
    )
    response.staging_completion.result(60)
    stager.synchronize_staging()
    state["w"].zero_()
    response.upload_completion.result(60)
    assert load(tmp_path / "c", state)["w"].sum() == 999 * 500
    failed = stager.stage({"lock": threading.Lock()})
    assert isinstance(failed, Future)
    with pytest.raises(cairn.Invalid, match=r"state\['lock'\]"):
        failed.result(60)
    stager.close()
    with pytest.raises(RuntimeError):
        stager.stage({})


PROCESS_SAVE = """
    import os, sys, torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    from cairn.torch import CairnStager

    if __name__ == "__main__":
        path, shared = sys.argv[1], sys.argv[2] == "shared"
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("gloo", init_method=f"file://{path}/meet", rank=0, world_size=1)
        stager = CairnStager(shared=shared)
        state = {"w": torch.zeros(1000), "part": None}
        state["part"] = state["w"][10:20]
        for step in range(2):
            state["w"].fill_(step + 1)
            future = dcp.async_save(
                state,
                storage_writer=dcp.FileSystemWriter(f"{path}/{step}"),
                async_stager=stager,
                async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            )
            state["w"].zero_()
            future.result(120)
            print(stager.stager.copy_count, stager.stager.copy_bytes, flush=True)
        stager.close()
        dist.destroy_process_group()
"""


@pytest.mark.parametrize("memory", ["shared", "private"])
def test_the_process_executor_writes_what_was_staged(tmp_path, memory):
    script = tmp_path / "save.py"
    script.write_text(textwrap.dedent(PROCESS_SAVE))
    result = subprocess.run(
        [sys.executable, script, tmp_path, memory], capture_output=True, text=True, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["1 4000", "1 4000"]
    for step in range(2):
        got = load(tmp_path / str(step), {"w": torch.empty(1000), "part": torch.empty(10)})
        assert bool((got["w"] == step + 1).all()) and bool((got["part"] == step + 1).all())
