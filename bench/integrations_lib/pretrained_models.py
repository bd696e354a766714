"""`save_pretrained` and `from_pretrained` of transformers and diffusers, and those of cairn.hf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

import cairn
import cairn.hf
from integrations_lib.library import Library
from integrations_lib.run import SAVES, Run
from integrations_lib.training import FROZEN, digest

WIDTH = 512


def _language_model(parameters: float) -> Any:
    per_layer = 4 * WIDTH**2 + 3 * WIDTH * 4 * WIDTH
    config = transformers.LlamaConfig(
        vocab_size=2048, hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_attention_heads=8,
        num_hidden_layers=max(1, round(parameters / per_layer)),
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def _image_model(parameters: float) -> Any:
    width = max(32, round((parameters / 550) ** 0.5) // 32 * 32)
    return diffusers.UNet2DModel(
        sample_size=32, block_out_channels=(width, 2 * width), layers_per_block=2,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def _change(model: torch.nn.Module, is_frozen: bool) -> None:
    """Stands for a training step, which is not measured."""
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter in parameters[round(FROZEN * len(parameters)) if is_frozen else 0 :]:
            parameter.add_(torch.randn_like(parameter), alpha=1e-3)


def _train(run: Run, model: Any) -> None:
    if run.case.is_cairn:
        with cairn.open(run.folder / "store", mode="a") as store:
            for step in range(1, SAVES + 1):
                _change(model, run.case.is_frozen)
                run.save(lambda step=step: cairn.hf.save_pretrained(model, store, step))
    else:
        for step in range(1, SAVES + 1):
            _change(model, run.case.is_frozen)
            run.save(lambda step=step: model.save_pretrained(run.folder / f"step_{step}"))
    run.digest = digest(model.state_dict().values())


def _load(run: Run, kind: Any) -> Any:
    if run.case.is_cairn:
        return cairn.hf.from_pretrained(f"{run.folder / 'store'}@{SAVES}")
    return kind.from_pretrained(Path(run.folder) / f"step_{SAVES}")


def _resume(run: Run, kind: Any) -> None:
    run.digest = digest(run.resume(lambda: _load(run, kind)).state_dict().values())


TRANSFORMERS = Library(
    title="save_pretrained of transformers",
    packages=("transformers", "safetensors"),
    rivals={"own": "cairn"},
    train=lambda run: _train(run, _language_model(run.case.parameters)),
    resume=lambda run: _resume(run, transformers.LlamaForCausalLM),
    text="The weights of a Llama model without an optimizer: `save_pretrained` and "
    "`from_pretrained` of transformers and of `cairn.hf`.",
)
DIFFUSERS = Library(
    title="save_pretrained of diffusers",
    packages=("diffusers", "safetensors"),
    rivals={"own": "cairn"},
    train=lambda run: _train(run, _image_model(run.case.parameters)),
    resume=lambda run: _resume(run, diffusers.UNet2DModel),
    text="The weights of a `UNet2DModel`, as above.",
)
