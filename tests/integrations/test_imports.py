"""Cairn imports the libraries that it is integrated with only when they are needed."""

import subprocess
import sys

import pytest

LIBRARIES = (
    "accelerate", "deepspeed", "diffusers", "jax", "megatron", "orbax", "peft",
    "pytorch_lightning", "ray", "torch", "torchao", "torchdata", "torchtitan", "transformers",
)


@pytest.mark.parametrize(("module", "needed"), [("cairn", set()), ("cairn.hf", {"torch"})])
def test_a_module_imports_only_the_libraries_that_it_needs(module, needed):
    program = f"import sys, {module}; print({set(LIBRARIES) - needed} & {{*sys.modules}})"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"
