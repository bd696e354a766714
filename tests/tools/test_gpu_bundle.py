"""The bundle for GPU machines: what its run.sh reports, and that the packed programs start."""

import os
import shutil
import subprocess
import tarfile

import pytest

from tool_programs import BIN_DIR, REPOSITORY

SMI = "#!/bin/sh\necho 'NVIDIA H100, 580.65'\n"
PASSES = "#!/bin/sh\necho '[  PASSED  ] 3 tests.'\n"
SKIPS = "#!/bin/sh\necho '[  PASSED  ] 0 tests.'\necho 'needs a GPU: no driver'\n"
DIES = "#!/bin/sh\necho 'a kernel failed'\nexit 134\n"


@pytest.fixture
def bundle(tmp_path, monkeypatch):
    """Returns a function that runs run.sh with these programs: (status, lines)."""
    shutil.copy2(REPOSITORY / "tools" / "gpu-bundle-run.sh", tmp_path / "run.sh")
    (tmp_path / "VERSION").write_text("a test\n")
    (tmp_path / "bin").mkdir()
    path = tmp_path / "path"
    path.mkdir()
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHON", "/bin/false")

    def run(smi, **programs):
        for place, name, text in [(path, "nvidia-smi", smi),
                                  *((tmp_path / "bin", n.replace("_bench", "-bench"), t)
                                    for n, t in programs.items())]:
            (place / name).write_text(text)
            (place / name).chmod(0o755)
        done = subprocess.run([tmp_path / "run.sh"], capture_output=True, text=True, timeout=120,
                              check=False)
        return done.returncode, done.stdout.splitlines()

    return run


def test_without_a_gpu_everything_is_skipped_with_the_reason(bundle):
    status, lines = bundle("#!/bin/sh\necho 'no driver'\nexit 9\n", a_test=DIES)
    assert status == 0
    assert lines == ["a test", "everything is skipped: nvidia-smi finds no GPU: no driver"]


def test_what_passes_and_what_is_skipped_is_listed(bundle):
    status, lines = bundle(SMI, a_test=PASSES, kv_bench=PASSES)
    assert status == 0
    assert "a_test: passed" in lines and "bench-stall: passed" in lines
    assert any(line.startswith("python: skipped") for line in lines)


@pytest.mark.parametrize(("program", "line"), [
    (DIES, "a_test: FAILED, status 134: a kernel failed"),
    (SKIPS, "a_test: FAILED, status 0: needs a GPU: no driver")])
def test_a_program_that_fails_or_does_not_find_the_gpu_fails_the_run(bundle, program, line):
    status, lines = bundle(SMI, a_test=program, kv_bench=PASSES)
    assert status == 1
    assert line in lines


@pytest.mark.slow
def test_the_packed_programs_start_in_another_folder(tmp_path):
    if not (BIN_DIR / "cuda_layer_gpu_test").exists():
        pytest.skip("built without the CUDA layer")
    archive = tmp_path / "bundle.tar.gz"
    subprocess.run([REPOSITORY / "tools" / "gpu-bundle.sh", archive], check=True, timeout=3000)
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    folder = tmp_path / "gpu-bundle"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib")}
    for program in (folder / "bin").iterdir():
        words = ["--help"] if program.name == "kv-bench" else ["--gtest_list_tests"]
        subprocess.run([program, *words], check=True, timeout=300, env=environment,
                       stdout=subprocess.DEVNULL)
    assert (folder / "tests" / "run.py").exists()
