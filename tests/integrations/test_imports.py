"""`import cairn` imports none of the libraries that it is integrated with."""

import importlib.util
import subprocess
import sys

import pytest

LIBRARIES = (
    "accelerate", "deepspeed", "diffusers", "jax", "megatron", "orbax", "peft",
    "pytorch_lightning", "ray", "torch", "torchao", "torchdata", "torchtitan", "transformers",
)


@pytest.mark.parametrize("library", LIBRARIES)
def test_cairn_does_not_import(library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    program = f"import sys, cairn; print({library!r} in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "False"
