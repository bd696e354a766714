"""The wheel for a Python without the interpreter lock, in a venv that has only numpy and pytest.

CAIRN_FREE_THREADED_PYTHON is such a Python, which Debian does not have. CAIRN_FREE_THREADED_WHEEL
names a wheel for it that exists already.
"""

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from test_find_package import ROOT, run
from test_wheel import bare_environment

PYTHON = os.environ.get("CAIRN_FREE_THREADED_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PYTHON, reason="CAIRN_FREE_THREADED_PYTHON names no Python"),
]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory) -> Path:
    if built := os.environ.get("CAIRN_FREE_THREADED_WHEEL"):
        return Path(built).resolve()
    dist = tmp_path_factory.mktemp("dist")
    run(ROOT / "tools/build-wheel.sh", "--python", PYTHON, dist)
    (path,) = dist.glob("cairn_ckpt-*.whl")
    return path


@pytest.fixture(scope="session")
def python(wheel, tmp_path_factory) -> Path:
    """The Python of the venv."""
    folder = tmp_path_factory.mktemp("venv")
    run(PYTHON, "-m", "venv", folder)
    run(folder / "bin/python", "-m", "pip", "install", "--only-binary=:all:", wheel, "pytest")
    return folder / "bin/python"


def test_the_wheel_is_for_one_version_and_contains_the_binding_library(wheel):
    assert re.fullmatch(r"cairn_ckpt-.*-(cp3\d+)-\1t-manylinux_2_28_x86_64\.whl", wheel.name)
    files = zipfile.ZipFile(wheel)
    (metadata,) = {name for name in files.namelist() if name.endswith(".dist-info/METADATA")}
    requirements = re.findall("^Requires-Dist: (.*)", files.read(metadata).decode(), re.M)
    assert [one for one in requirements if "extra" not in one] == ["numpy"]
    assert "cairn/_cairn.pyi" in files.namelist()


def test_threads_use_the_package_without_the_lock(python, tmp_path):
    # Python warns of a module for which it takes the lock again.
    command = [python, "-W", "error", "-m", "pytest", "-q", "--noconftest", "-c", os.devnull]
    command += ["--rootdir", tmp_path, "--basetemp", tmp_path / "stores"]
    command += [ROOT / "tests/python/test_threads.py"]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=bare_environment()
    )
    assert ended.returncode == 0, ended.stdout
    assert "skipped" not in ended.stdout


def test_the_programs_are_in_the_venv(python):
    for program in ("kv-dump", "kv-admin"):
        version = run(python.with_name(program), "--version", env=bare_environment())
        assert version.startswith(f"{program} ")
