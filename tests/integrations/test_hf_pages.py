"""The examples of docs/integrations/huggingface.md and trainer.md run as they are written."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from hf_models import make, run_admin, tokenizer

PAGES = Path(__file__).resolve().parents[2] / "docs" / "integrations"


def run_examples(page, names):
    """Runs all blocks of Python of a page, one after the other, with these names defined."""
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    assert len(blocks) >= 2, "the list of examples looks wrong"
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


def test_huggingface(tmp_path, monkeypatch):
    pytest.importorskip("peft")
    pytest.importorskip("diffusers")
    from test_hf_diffusers import ddpm

    import cairn

    monkeypatch.chdir(tmp_path)
    make("llama").save_pretrained("models/qwen")
    tokenizer().save_pretrained("models/qwen")
    words = ("--step", "0", "models/qwen", "--format", "hf", "--prefix", "model")
    run_admin("import", "runs/tune", *words)
    names = {"cairn": cairn, "model": make("llama"), "tokenizer": tokenizer(), "pipeline": ddpm()}
    names = run_examples("huggingface.md", names)
    assert type(names["adapted"]).__name__.startswith("PeftModel")
    assert cairn.open("runs/tune").steps() == [0, 10, 20, 21]


def test_trainer(tmp_path, monkeypatch):
    import transformers
    from accelerate import Accelerator

    monkeypatch.chdir(tmp_path)
    data = [{"input_ids": torch.arange(6), "labels": torch.arange(6)}] * 8
    arguments = transformers.TrainingArguments(
        output_dir="out", max_steps=2, save_steps=1, report_to="none", use_cpu=True
    )
    trainer = transformers.Trainer(model=make("llama"), args=arguments, train_dataset=data)
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    run_examples(
        "trainer.md",
        {"trainer": trainer, "accelerator": accelerator, "train_one_step": lambda: None},
    )
    assert {path.name for path in Path("runs").iterdir()} == {"sft", "loop"}
    assert not Path("checkpoints").exists()
