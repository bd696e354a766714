"""The package whose first hour it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def newest_wheel() -> Path | None:
    """CAIRN_WHEEL, or a wheel in dist/ that is newer than the package; None: there is none."""
    if named := os.environ.get("CAIRN_WHEEL"):
        return Path(named).resolve()
    sources = [*ROOT.glob("python/cairn/**/*.py"), *ROOT.glob("build/python/cairn/_cairn.*.so")]
    changed = max(path.stat().st_mtime for path in sources)
    wheels = {path.stat().st_mtime: path for path in ROOT.glob("dist/cairn_ckpt-*x86_64.whl")}
    return wheels[max(wheels)] if max(wheels, default=0) > changed else None


@pytest.fixture(scope="session")
def environment(tmp_path_factory) -> dict[str, str]:
    """The variables of a process that has the wheel, or else the built package."""
    package, programs = ROOT / "build/python", ROOT / "build/bin"
    if (wheel := newest_wheel()) is not None:
        package = tmp_path_factory.mktemp("wheel")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*pip, "--target", package, wheel], check=True)
        programs = package / "bin"
    return {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": f"{package}:{ROOT / 'tests/docs'}",
        "OMP_NUM_THREADS": "1",
    }
