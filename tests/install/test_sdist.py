"""The source distribution: small, complete, and clear about what the system lacks."""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from test_find_package import ROOT, run


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    """The extracted source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "import sys, scikit_build_core.build as b; b.build_sdist(sys.argv[1])"
    run(sys.executable, "-c", build, folder, cwd=ROOT)
    (archive,) = folder.glob("cairn_ckpt-*.tar.gz")
    assert archive.stat().st_size <= 2_000_000
    with tarfile.open(archive) as members:
        members.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def configure(source: Path, folder: Path, *options: str) -> subprocess.CompletedProcess:
    words = ["cmake", "-S", source, "-B", folder, "-G", "Ninja", "-DCAIRN_BUILD_TESTS=OFF"]
    words += [f"-DPython_EXECUTABLE={sys.executable}", *options]
    return subprocess.run(words, capture_output=True, text=True)


def test_it_has_what_a_build_needs(source, tmp_path):
    assert not (source / "tests").exists() and not (source / "docs").exists()
    configured = configure(source, tmp_path)
    assert configured.returncode == 0, configured.stderr
    sources = re.findall(r"build \S+\.o: \S+ (\S+\.cc) ", (tmp_path / "build.ninja").read_text())
    ours = [path for path in sources if path.startswith(str(source))]
    assert len(ours) > 200 and not [path for path in ours if not Path(path).exists()]


def test_it_names_all_packages_that_are_missing(source, tmp_path):
    options = ["-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",  # hides what the system has
               "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF",
               f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
               f"-DCMAKE_CXX_COMPILER={shutil.which('c++')}"]
    configured = configure(source, tmp_path, *options)
    assert configured.returncode != 0
    message = " ".join(configured.stderr.split())
    (debian,) = re.findall(r"apt-get install ((?:[\w.+-]+ )+)Fedora", message)
    setup = (ROOT / "tools/setup.sh").read_text()
    assert len(debian.split()) == 16 and all(name in setup for name in debian.split())
    assert "dnf install flatbuffers-compiler" in message and "pip install" in message
