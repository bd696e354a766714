"""The examples of docs/integrations/huggingface.md and trainer.md run as they are written."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from hf_models import make, tokenizer

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
    names = {"cairn": cairn, "model": make("llama"), "tokenizer": tokenizer(), "pipeline": ddpm()}
    names = run_examples("huggingface.md", names)
    assert type(names["adapted"]).__name__.startswith("PeftModel")
