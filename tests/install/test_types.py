"""The types of the package as users see them: mypy on a program, and the stub of the module."""

import subprocess
import sys
from pathlib import Path

import pytest

TYPES = Path(__file__).parent / "types"


def run_module(module: str, *words: object, cwd: Path = TYPES) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


@pytest.mark.slow
def test_a_program_of_a_user_is_correct_for_strict_mypy(tmp_path):
    done = run_module("mypy", "--strict", "--cache-dir", tmp_path, "training.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_the_mistakes_of_a_user(tmp_path):
    """torch is left out, which takes most of the time; so this also shows that types are found."""
    words = "--config-file", "without_torch.ini", "--cache-dir", tmp_path, "mistakes.py"
    done = run_module("mypy", *words)
    found = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    lines = (TYPES / "mistakes.py").read_text().splitlines()
    expected = [str(n) for n, line in enumerate(lines, 1) if "# mistake" in line]
    assert found == expected, done.stdout + done.stderr


def test_the_stub_describes_the_module(tmp_path):
    """Every name, and no other; nanobind's functions have no signature that could be compared."""
    words = "cairn._cairn", "--concise", "--mypy-config-file", TYPES / "without_torch.ini"
    done = run_module("mypy.stubtest", *words, cwd=tmp_path)
    missing = [line for line in done.stdout.splitlines()
               if "is not present" in line or "not a type" in line]
    assert not missing, "\n".join(missing)
    assert "cairn._cairn." in done.stdout, done.stdout + done.stderr  # it did compare
