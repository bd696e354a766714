"""The types of the package as users see them: mypy on a program, and the stub of the module."""

import subprocess
import sys
from pathlib import Path

import pytest

TYPES = Path(__file__).parent / "types"


def mypy(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=TYPES)


@pytest.mark.slow
def test_a_program_of_a_user_is_correct_for_strict_mypy(tmp_path):
    done = mypy("--strict", "--cache-dir", tmp_path, "training.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_finds_the_mistakes_of_a_user(tmp_path):
    """torch is left out, which takes most of the time; so this also shows that types are found."""
    done = mypy("--config-file", "without_torch.ini", "--cache-dir", tmp_path, "mistakes.py")
    found = [line.split(":")[1] for line in done.stdout.splitlines() if ": error:" in line]
    lines = (TYPES / "mistakes.py").read_text().splitlines()
    expected = [str(n) for n, line in enumerate(lines, 1) if "# mistake" in line]
    assert found == expected, done.stdout + done.stderr


def test_the_stub_describes_the_module(tmp_path):
    """Every name, and no other; nanobind's functions have no signature that could be compared."""
    command = [sys.executable, "-m", "mypy.stubtest", "cairn._cairn", "--concise",
               "--mypy-config-file", TYPES / "without_torch.ini"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          cwd=tmp_path)
    missing = [line for line in done.stdout.splitlines()
               if "is not present" in line or "not a type" in line]
    assert not missing, "\n".join(missing)
    assert "cairn._cairn." in done.stdout, done.stdout + done.stderr  # it did compare
