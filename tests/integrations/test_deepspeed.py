"""DeepSpeed's engine with Cairn as its checkpoint engine."""

from __future__ import annotations

import pytest

pytest.importorskip("deepspeed")

import cairn
import torch
from cairn.trainers.deepspeed import CairnCheckpointEngine


def test_a_file_of_deepspeed_is_loaded_as_deepspeed_does(tmp_path):
    torch.save({"a": 1}, tmp_path / "own.pt")
    assert CairnCheckpointEngine().load(str(tmp_path / "own.pt")) == {"a": 1}
    with pytest.raises(cairn.NotFound):
        CairnCheckpointEngine().load(str(tmp_path / "absent.pt"))
