"""Ray Train with checkpoints that refer to steps of a store."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("ray.train")

import cairn
from cairn.trainers.ray import locate_checkpoint
from ray.train import Checkpoint
from trainer_runs import train

SCRIPT = "ray_train.py"


@pytest.mark.timeout(3600)  # Ray starts its processes twice
def test_a_worker_that_is_killed_is_replaced_and_continues_bit_for_bit(tmp_path):
    whole = train(SCRIPT, tmp_path / "whole")
    resumed = train(SCRIPT, tmp_path / "killed", "--kill-at", 7)

    assert "resumed after step 0" in whole.output
    # The last checkpoint that Ray had registered when the worker died.
    assert re.search(r"resumed after step [246]$", resumed.output, re.MULTILINE)
    assert resumed.weights == whole.weights is not None
    assert resumed.losses == whole.losses
    with cairn.open(tmp_path / "killed" / "store") as store:
        assert store.steps() == [2, 4, 6, 8, 10, 12]
        assert store.step_info(12).ranks == 2
    found = sorted((tmp_path / "killed").rglob("cairn.json"))
    address, step = locate_checkpoint(Checkpoint.from_directory(found[-1].parent))
    assert (address, step) == (str(tmp_path / "killed" / "store"), 12)
    assert all(file.stat().st_size < 1000 for file in found)


def test_other_checkpoints_are_refused(tmp_path):
    with pytest.raises(cairn.NotFound, match=re.escape("cairn.json")):
        locate_checkpoint(Checkpoint.from_directory(tmp_path))
