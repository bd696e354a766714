"""bench/libraries.py: it kills saves and flips bits of Cairn and safetensors, and writes tables."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "bench" / "libraries.py"


@pytest.mark.timeout(600)
def test_libraries_are_measured_and_a_page_is_written(tmp_path):
    words = ["--dir", tmp_path / "dir", "--out", tmp_path, "--layers", "2", "--kills", "2",
             "--flips", "3"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, PROGRAM, "cairn", "safetensors", *words],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    libraries = json.loads((tmp_path / "libraries.json").read_text())["libraries"]
    for library in libraries.values():
        assert all(sum(counts.values()) == 2 for counts in library["kills"].values())
        assert all(sum(counts.values()) == 3 for counts in library["flips"].values())
    cairn = libraries["cairn"]
    for counts in cairn["kills"].values():
        assert not {"damaged", "nothing"} & counts.keys()
    assert "wrong" not in cairn["flips"]["all bytes"] | cairn["flips"]["the records"]
    page = (tmp_path / "libraries.md").read_text()
    assert "## Killed saves" in page and "| safetensors, a new step |" in page
    assert list((tmp_path / "dir").iterdir()) == []


def test_unknown_libraries_are_refused(tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--dir", tmp_path, "--out", tmp_path, "nothing"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "unknown libraries ['nothing']" in done.stderr
