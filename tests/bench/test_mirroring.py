"""bench/mirroring.py: every step of a job that saves slowly arrives in the bucket."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_step_arrives(tmp_path):
    words = ["--dir", tmp_path, "--mib", "1", "--saves", "3", "--every", "0.5"]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "mirroring.py", *words],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["saves"] == 3 and figures["skipped"] == 0
    assert 0 < figures["lag_median_s"] <= figures["lag_max_s"]
    assert list(tmp_path.iterdir()) == []
