"""Extreme values of each parameter: tests/python/extreme_options.py without the directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("extreme_options.py")


def test_no_value_of_a_parameter_ends_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 failures" in ended.stdout
