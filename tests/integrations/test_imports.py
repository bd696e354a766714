"""Cairn imports the libraries that it is integrated with only when they are needed."""

import pytest
from cairn_testing import run_python

LIBRARIES = (
    "accelerate", "deepspeed", "diffusers", "jax", "megatron", "orbax", "peft",
    "pytorch_lightning", "ray", "torch", "torchao", "torchdata", "torchtitan", "transformers",
)


@pytest.mark.parametrize(("module", "needed"), [("cairn", set()), ("cairn.hf", {"torch"})])
def test_a_module_imports_only_the_libraries_that_it_needs(module, needed):
    program = f"import sys, {module}; print({set(LIBRARIES) - needed} & {{*sys.modules}})"

    assert run_python(program, fresh=True).stdout.strip() == "set()"
