"""bench/small_saves.py: it saves with every contender and reports the percentiles."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_contender_saves_and_nothing_remains(tmp_path):
    words = ["--dir", tmp_path, "--saves", "3", "--bytes", "4096", "--json"]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "small_saves.py", *words],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["name"] for row in rows] == ["cairn", "sqlite, WAL", "sqlite, rollback journal"]
    assert all(row["saves"] == 3 and 0 < row["p50_ms"] <= row["p99_ms"] for row in rows)
    assert list(tmp_path.iterdir()) == []
