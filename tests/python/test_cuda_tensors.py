"""CUDA tensors without a GPU: the cases in simulated_cuda/, in a process that imports the package
linked with the simulated runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cairn

CASES = Path(__file__).parent / "simulated_cuda"
PACKAGES = Path(cairn.__file__).parent.parent.with_name("python-simulated")


@pytest.mark.long
@pytest.mark.parametrize("ranks", ["one", "several"])
def test_on_the_simulated_runtime(ranks, tmp_path):
    if not (PACKAGES / "cairn" / "__init__.py").exists():
        pytest.skip(f"no package in {PACKAGES}: the build found no CUDA toolkit")
    of_ranks = {*CASES.glob("rank*_cases.py"), *CASES.glob("nccl*_cases.py")}
    cases = of_ranks if ranks == "several" else {*CASES.glob("*_cases.py")} - of_ranks
    folders = [str(PACKAGES), str(CASES), str(CASES.parent)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        + ["-p", "simulated_machine"]
        + ["-o", "python_files=*_cases.py", "--basetemp", str(tmp_path / "cases")]
        + sorted(map(str, cases)),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    if ranks == "several" and "no nccl.h" in ended.stdout and " passed" not in ended.stdout:
        pytest.skip("the build found no nccl.h")
    assert " passed" in ended.stdout
