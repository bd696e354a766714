"""Runs the programs of build/bin (or $CAIRN_BIN_DIR) on stores in temporary directories."""

import json
import os
import pathlib
import subprocess

import torch
from safetensors.torch import save_file

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("CAIRN_BIN_DIR", REPOSITORY / "build" / "bin"))


class Finished:
    """The result of a program: its exit status and what it printed."""

    def __init__(self, process):
        self.status = process.returncode
        self.out = process.stdout.decode()
        self.err = process.stderr.decode()

    def json(self):
        return json.loads(self.out)


def run_program(name, *words, **options):
    """Runs one of our programs; termination by a signal or a hang is always a failure."""
    process = subprocess.run(
        [BIN_DIR / name, *map(str, words)], capture_output=True, timeout=120, **options
    )
    finished = Finished(process)
    assert finished.status in (0, 1, 2), (name, words, finished.status, finished.err)
    if finished.status == 2:
        assert finished.err.startswith(f"{name}: "), finished.err
        assert finished.err.count("\n") == 1 + finished.err.count(": warning: "), finished.err
    return finished


def small_model(scale=1.0):
    """Tensors of several dtypes and shapes, including an empty one and a scalar."""
    generator = torch.Generator().manual_seed(7)
    return {
        "model.wte.weight": torch.randn(100, 64, generator=generator) * scale,
        "model.layers.1.w": torch.randn(40, 40, generator=generator).to(torch.bfloat16),
        "model.layers.10.w": torch.randn(8, 3, 5, generator=generator).to(torch.float16),
        "model.ids": torch.arange(-5, 20, dtype=torch.int64),
        "model.mask": torch.tensor([True, False, True]),
        "optimizer.step": torch.tensor(17.0),
        "optimizer.empty": torch.zeros(0, 4),
    }


def import_model(admin, folder, store, step, tensors, *options):
    path = pathlib.Path(folder) / f"model-{step}.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    finished = admin("import", store, "--step", step, path, *options)
    assert finished.status == 0, finished.err
    return finished
