"""States of accelerate in a store: a loop that is killed continues bit for bit."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("accelerate")

from accelerate import Accelerator
from trainer_runs import assert_continues, train

import cairn
import cairn.hf

# The programs import most of the libraries, which takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(1500)

PROGRAM = Path(__file__).parent / "accelerate_program.py"


@pytest.mark.parametrize("ranks", [0, 2])
def test_a_killed_loop_continues_bit_for_bit(tmp_path, ranks):
    whole = train(PROGRAM, tmp_path / "whole", ranks=ranks)
    first = train(PROGRAM, tmp_path / "store", 13, ranks=ranks, dies=True)
    second = train(PROGRAM, tmp_path / "store", ranks=ranks)

    assert_continues(whole, [first, second])
    # A save in the background may or may not be complete when the process is killed.
    assert min(second.losses) in (10, 13)
    with cairn.open(tmp_path / "store") as store:
        assert store.steps() == [15, 18]


def prepared(**options):
    accelerator = Accelerator(cpu=True, **options)
    model = torch.nn.Linear(3, 2)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    return accelerator


def test_hooks_and_names_and_errors(tmp_path):
    accelerator = prepared()
    seen = []
    accelerator.register_save_state_pre_hook(
        lambda models, weights, folder: seen.append((len(models), list(weights[0]), folder))
    )
    accelerator.register_load_state_pre_hook(lambda models, folder: seen.append(folder))
    with cairn.hf.use_store(accelerator, tmp_path / "s") as saves:
        with pytest.raises(cairn.NotFound):
            accelerator.load_state()
        accelerator.save_state(str(tmp_path / "run-2" / "epoch_7"))
        assert accelerator.save_state("8/") == f"{tmp_path}/s@8"
        accelerator.load_state(str(tmp_path / "run-2" / "epoch_7"))
        assert saves.steps() == [7, 8]
        with pytest.raises(cairn.Invalid, match="has no number"):
            accelerator.save_state("best")
        with pytest.raises(cairn.Conflict):
            accelerator.save_state("step_7")
        accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
        with pytest.raises(cairn.Invalid, match="0 custom, but the accelerator has 1"):
            accelerator.load_state("step_8")
    assert seen[0] == (1, ["weight", "bias"], str(tmp_path / "run-2" / "epoch_7"))
    assert not (tmp_path / "run-2").exists()


def test_a_model_is_loaded_into_its_memory(tmp_path):
    accelerator = prepared()
    weight = accelerator._models[0].weight
    before = weight.detach().clone()
    with cairn.hf.use_store(accelerator, tmp_path / "s"):
        accelerator.save_state("1")
        with torch.no_grad():
            weight.zero_()
        accelerator.load_state("1")
    assert torch.equal(weight, before) and accelerator._models[0].weight is weight


def test_a_stateful_data_loader_must_be_registered(tmp_path):
    pytest.importorskip("torchdata")
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True)
    )
    accelerator.prepare(torch.utils.data.DataLoader(range(10)))
    with cairn.hf.use_store(accelerator, tmp_path / "s"):
        with pytest.raises(cairn.Invalid, match="register_for_checkpointing"):
            accelerator.save_state("1")
