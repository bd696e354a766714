"""DeepSpeed's engine with Cairn as its checkpoint engine, and imports of its own checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import pytest

pytest.importorskip("deepspeed")

import cairn
import torch
from cairn.trainers.deepspeed import CairnCheckpointEngine
from cairn.trainers.deepspeed_import import import_checkpoint
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from trainer_runs import assert_continues, train

SCRIPT = "deepspeed_checkpoints.py"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The folder and the output of a run with DeepSpeed's own engine, by stage."""
    runs = {}

    def run(stage: int):
        if stage not in runs:
            folder = tmp_path_factory.mktemp(f"own{stage}")
            runs[stage] = folder, train(SCRIPT, folder, "--own", "--stage", stage, ranks=2)
        return runs[stage]

    return run


@pytest.mark.parametrize("options", [(), ("--sync",)], ids=["async", "sync"])
def test_a_run_that_is_killed_continues_bit_for_bit(tmp_path, own, options):
    first = train(SCRIPT, tmp_path, *options, ranks=2, kill_at=7)
    second = train(SCRIPT, tmp_path, *options, ranks=2)

    assert_continues(own(2)[1], [first, second])
    with cairn.open(tmp_path / "cairn-store") as store:
        assert store.steps() == [2, 4, 6, 8, 10, 12]
        assert "mp_rank_00_model_states.module.0.weight" in store.keys(12)
        assert store.step_info(12).ranks == 2


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_checkpoints_are_imported(tmp_path, own, stage):
    folder, _ = own(stage)

    import_checkpoint(folder, tmp_path / "store", step=12)

    expected = get_fp32_state_dict_from_zero_checkpoint(str(folder))
    with cairn.open(tmp_path / "store") as store:
        state = store.read(step=12)
    assert state["model"].keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state["model"][name], value.float()), name
        moments = state["optimizer"]["state"][name]
        assert moments["exp_avg"].shape == value.shape == moments["exp_avg_sq"].shape
        assert moments["exp_avg"].abs().sum() > 0 and (moments["exp_avg_sq"] >= 0).all()
        assert moments["exp_avg"].dtype == torch.float32
    assert state["optimizer"]["param_groups"][0]["params"] == list(expected)
    assert state["global_steps"] == 12


def test_universal_checkpoints_are_imported(tmp_path, own):
    folder, _ = own(2)
    universal = tmp_path / "universal"
    subprocess.run(
        [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state",
         "--input_folder", str(folder / "global_step12"), "--output_folder", str(universal)],
        check=True, capture_output=True, env={**os.environ, "DS_ACCELERATOR": "cpu"},
    )

    import_checkpoint(folder, tmp_path / "store", step=1)
    import_checkpoint(universal, tmp_path / "store", step=2)

    with cairn.open(tmp_path / "store") as store:
        zero, converted = store.read(step=1), store.read(step=2)
        for name, value in zero["model"].items():
            assert torch.equal(converted["model"][name], value), name
            for field in ("exp_avg", "exp_avg_sq"):
                expected = zero["optimizer"]["state"][name][field]
                assert torch.equal(converted["optimizer"]["state"][name][field], expected), name


class Custom:
    pass


def test_other_objects_need_consent(tmp_path, own):
    folder, _ = own(2)
    copy = tmp_path / "copy" / "global_step12"
    copy.mkdir(parents=True)
    for file in (folder / "global_step12").iterdir():
        os.link(file, copy / file.name)
    model = copy / "mp_rank_00_model_states.pt"
    content = torch.load(model, weights_only=False)
    model.unlink()
    torch.save({**content, "extra": Custom()}, model)

    with pytest.raises(cairn.Invalid, match="allow_pickle=True"):
        import_checkpoint(copy, tmp_path / "store", step=1)
    assert not (tmp_path / "store").exists()
    import_checkpoint(copy, tmp_path / "store", step=1, allow_pickle=True)
    with pytest.raises(cairn.Conflict):
        import_checkpoint(copy, tmp_path / "store", step=1, allow_pickle=True)


def test_missing_parts_are_named(tmp_path, own):
    folder, _ = own(2)
    with pytest.raises(cairn.NotFound, match="not a checkpoint of DeepSpeed"):
        import_checkpoint(tmp_path, tmp_path / "store", step=1)
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in sorted((folder / "global_step12").iterdir())[1:]:
        os.link(file, copy / file.name)
    with pytest.raises(cairn.Invalid, match="of 1 of 2 ranks"):
        import_checkpoint(copy, tmp_path / "store", step=1)


def test_a_file_of_deepspeed_is_loaded_as_deepspeed_does(tmp_path):
    torch.save({"a": 1}, tmp_path / "own.pt")
    assert CairnCheckpointEngine().load(str(tmp_path / "own.pt")) == {"a": 1}
    with pytest.raises(cairn.NotFound):
        CairnCheckpointEngine().load(str(tmp_path / "absent.pt"))
