"""Checkpoints of transformers.Trainer in a store: a run that is killed continues bit for bit."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import transformers
from hf_models import logits, make, run_admin
from trainer_runs import assert_continues, train

import cairn
import cairn.hf

# The programs import most of the libraries, which takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(1500)

PROGRAM = Path(__file__).parent / "trainer_program.py"


def run(folder, *options, store="store", **how):
    return train(PROGRAM, folder / store, folder / "out", *options, **how)


def check_killed_run(tmp_path, *options, ranks=0):
    """Kills a run, and compares it with one that is not interrupted."""
    whole = run(tmp_path, *options, ranks=ranks, store="whole")
    first = run(tmp_path, *options, "--kill-at", 10, ranks=ranks, dies=True)
    second = run(tmp_path, *options, ranks=ranks)

    assert_continues(whole, [first, second])
    # A save in the background may or may not be complete when the process is killed.
    assert min(second.losses) in (7, 10)
    assert not list((tmp_path / "out").glob("checkpoint-*"))
    with cairn.open(tmp_path / "store") as store:
        assert store.steps() == [12, 14]  # save_total_limit=2


def test_a_killed_run_continues_bit_for_bit(tmp_path):
    check_killed_run(tmp_path)

    # The steps are models.
    run_admin("export", f"{tmp_path}/store@14", tmp_path / "model", "--format", "hf")
    own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/store@14")
    assert torch.equal(logits(own), logits(loaded))
    assert not torch.equal(logits(loaded), logits(make("gpt2")))
    assert (tmp_path / "model" / "trainer_state.json").exists()
    tokens = cairn.hf.load_tokenizer(f"{tmp_path}/store@14")("abc").input_ids
    assert len(tokens) == 3


def test_a_killed_run_of_an_adapter_continues_bit_for_bit(tmp_path):
    pytest.importorskip("peft")
    for store in ("whole", "store"):
        cairn.hf.save_pretrained(make("gpt2"), f"{tmp_path}/{store}-base@0")
    check_killed_run(tmp_path, "--lora")

    with cairn.open(tmp_path / "store") as store:
        assert all("lora_" in key for key in store.keys(pattern="model"))
    loaded = cairn.hf.from_pretrained(f"{tmp_path}/store@14")
    assert not torch.equal(logits(loaded), logits(make("gpt2")))


def test_a_killed_run_of_two_ranks_continues_bit_for_bit(tmp_path):
    check_killed_run(tmp_path, ranks=2)


def test_metrics_of_evaluations_are_recorded(tmp_path):
    run(tmp_path, "--steps", 6, "--evaluate")
    with cairn.open(tmp_path / "store") as store:
        assert store.steps() == [3, 6]
        for step in store.steps():
            assert store.step_info(step).metrics["eval_loss"] > 0


def make_trainer(folder, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), report_to="none", use_cpu=True, disable_tqdm=True, **options
    )
    row = {"input_ids": torch.arange(6), "labels": torch.arange(6)}
    return transformers.Trainer(model=make("gpt2"), args=arguments, eval_dataset=[row])


def test_what_is_not_supported_is_refused(tmp_path):
    def attach(**options):
        with cairn.hf.CairnCallback(tmp_path / "s") as checkpoints:
            checkpoints.attach(make_trainer(tmp_path, **options))

    with pytest.raises(cairn.Invalid, match="save_only_model"):
        attach(save_only_model=True)
    with pytest.raises(cairn.Invalid, match="load_best_model_at_end"):
        attach(load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps")
    with pytest.raises(cairn.Invalid, match="every="):
        cairn.hf.CairnCallback(tmp_path / "s", every=3)
    assert not (tmp_path / "s").exists()


def test_only_steps_of_a_trainer_are_resumed(tmp_path):
    cairn.hf.save_pretrained(make("gpt2"), f"{tmp_path}/s@3")
    with cairn.hf.CairnCallback(tmp_path / "s") as checkpoints:
        with pytest.raises(cairn.Invalid, match="attach"):
            checkpoints.latest()
        trainer = make_trainer(tmp_path)
        checkpoints.attach(trainer)
        with pytest.raises(cairn.Invalid, match="not saved by a Trainer"):
            checkpoints.latest()
        with pytest.raises(cairn.Invalid, match="latest"):
            trainer._load_from_checkpoint(str(tmp_path))


def test_an_earlier_step_is_resumed_and_later_ones_are_replaced(tmp_path):
    run(tmp_path, "--steps", 6)
    trainer = make_trainer(tmp_path, max_steps=6)
    with cairn.hf.CairnCallback(tmp_path / "store", overwrite=True) as checkpoints:
        checkpoints.attach(trainer)
        state = Path(checkpoints.latest(3), "trainer_state.json").read_text()
        assert json.loads(state)["global_step"] == 3
        with pytest.raises(cairn.NotFound):
            checkpoints.latest(4)
