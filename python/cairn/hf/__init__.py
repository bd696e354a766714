"""Models of Hugging Face libraries in a store: transformers, peft, diffusers; and their trainers.

    import cairn.hf

    cairn.hf.save_pretrained(model, "runs/sft@100", tokenizer=tokenizer)
    model = cairn.hf.from_pretrained("runs/sft@100", device="cuda")
    tokenizer = cairn.hf.load_tokenizer("runs/sft@100")

A step contains what a directory of ``save_pretrained`` contains: the weights as tensors, and the
other files, such as ``config.json``, as bytes. ``kv-admin import`` and ``export`` with ``--format
hf`` convert between the two (docs/integrations/huggingface.md). :func:`describe` makes the steps of
a training loop models, too.

:class:`CairnCallback` replaces the checkpoint folders of ``transformers.Trainer``, and
:func:`use_store` replaces the folders of ``accelerate`` (docs/integrations/trainer.md).

The libraries are imported when they are needed. Code that a model repository contains is run only
with ``trust_remote_code=True``.
"""

from __future__ import annotations

from typing import Any

from cairn.hf._accelerate import AcceleratorSaves, use_store
from cairn.hf._load import files, from_pretrained, load_tokenizer
from cairn.hf._save import describe, save_pretrained

__all__ = [
    "AcceleratorSaves",
    "CairnCallback",
    "describe",
    "files",
    "from_pretrained",
    "load_tokenizer",
    "save_pretrained",
    "use_store",
]


def __getattr__(name: str) -> Any:
    """Imports `CairnCallback`, whose base class is one of transformers, when it is first used."""
    if name != "CairnCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cairn.hf._trainer import CairnCallback

    globals()[name] = CairnCallback
    return CairnCallback
