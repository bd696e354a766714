"""`import cairn` imports none of the libraries that it is integrated with."""

import subprocess
import sys

LIBRARIES = (
    "accelerate", "deepspeed", "diffusers", "jax", "megatron", "orbax", "peft",
    "pytorch_lightning", "ray", "torch", "torchao", "torchdata", "torchtitan", "transformers",
)


def test_cairn_imports_none_of_them():
    program = f"import sys, cairn; print({set(LIBRARIES)} & {{*sys.modules}})"

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"
