"""tools/gpu_check.sh: what `run` reports, and that everything that `pack` packs runs elsewhere."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tool_programs import BIN_DIR, REPOSITORY

SCRIPT = REPOSITORY / "tools" / "gpu_check.sh"
PROGRAMS = ("cuda_layer_test", "cuda_small_budget_test", "nccl_test", "kv-bench")
SMI = "#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 580.65'\n"
PASSES = "#!/bin/sh\necho '[  PASSED  ] 3 tests.'\n"
SKIPS = "#!/bin/sh\necho '[  PASSED  ] 0 tests.'\necho 'needs a GPU: no driver'\n"
DIES = "#!/bin/sh\necho 'a kernel failed'\nexit 134\n"


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """Returns a function that runs `run tests` with these programs: (status, lines)."""
    shutil.copy2(SCRIPT, tmp_path)
    (tmp_path / "VERSION").write_text("a test\n")
    for folder in ("bin", "path"):
        (tmp_path / folder).mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin:/usr/sbin:/sbin")
    monkeypatch.setenv("PYTHON", "/bin/false")

    def run(smi, program=PASSES):
        files = {"path/nvidia-smi": smi, "path/compute-sanitizer": PASSES}
        files |= {f"bin/{name}": program for name in PROGRAMS}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        done = subprocess.run([tmp_path / SCRIPT.name, "run", "tests"], capture_output=True,
                              text=True, check=False)
        return done.returncode, done.stdout.splitlines()

    return run


def test_without_a_gpu_everything_is_skipped_with_the_reason(packed):
    status, lines = packed("#!/bin/sh\necho 'no driver'\nexit 9\n", DIES)
    assert status == 0
    assert lines == ["everything is skipped: nvidia-smi finds no GPU: no driver"]


def test_what_passes_and_what_fails_is_listed(packed):
    status, lines = packed(SMI)
    assert status == 1  # this Python cannot run anything
    assert lines[0].startswith("NVIDIA H100")
    assert any(line.startswith("CUDA layer: passed") for line in lines)
    assert any(line.startswith("Python: saves, loads, DCP: FAILED, status 1") for line in lines)
    assert any(line.startswith("racecheck: passed") for line in lines)


@pytest.mark.parametrize(("program", "line"), [
    (DIES, "CUDA layer: FAILED, status 134: a kernel failed"),
    (SKIPS, "CUDA layer: FAILED, status 0: needs a GPU: no driver")])
def test_a_program_that_fails_or_does_not_find_the_gpu_fails_the_run(packed, program, line):
    status, lines = packed(SMI, program)
    assert status == 1
    assert line in [re.sub(r" \(\d+ s\)", "", each) for each in lines]


@pytest.mark.slow
@pytest.mark.timeout(6000)
def test_everything_runs_from_another_folder_on_the_simulated_runtime(tmp_path):
    if not (BIN_DIR / "cuda_layer_gpu_test").exists():
        pytest.skip("built without the CUDA layer")
    folder = tmp_path / "packed"
    subprocess.run([SCRIPT, "pack", "--simulated", folder], check=True, timeout=3000)
    for what in ("tests", "figures"):
        done = subprocess.run([folder / SCRIPT.name, "run", what], capture_output=True, text=True,
                              env={**os.environ, "PYTHON": sys.executable}, cwd="/", timeout=900,
                              check=False)
        assert done.returncode == 0, done.stdout
        assert "FAILED" not in done.stdout
