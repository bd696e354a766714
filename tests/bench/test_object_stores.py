"""bench/object_stores.py: Cairn saves and loads on a real server, and the loads are compared."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_one_round_of_cairn(tmp_path):
    raw = tmp_path / "raw.json"
    words = ["--dir", tmp_path / "work", "--bytes", str(200 << 20), "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "object_stores.py", *words, "--only", "Cairn",
         "--json", raw],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row["work"]: row["runs"] for row in json.loads(raw.read_text())}
    assert {work: runs[0]["bytes"] >> 20 for work, runs in rows.items()} == {
        "save": 200, "load": 200, "keys": 20,
    }  # fmt: skip
    assert "| Cairn |" in done.stdout
    assert list((tmp_path / "work").iterdir()) == []  # the server has ended
