"""bench/object_stores.py and bench/object_store_latency.py on a real server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_a_delay_of_every_request(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    subprocess.run(
        [ROOT / "build/bin/kv-bench", "open", "--dir", kept, "--chunks", "20000", "--repeat", "1"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (store,) = kept.iterdir()
    words = ["--dir", tmp_path, "--store", f"{store}@1", "--bytes", str(32 << 20)]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "object_store_latency.py", *words, "--rounds", "1"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line in ("open and first key, 20 ms:", "open and first key, 20 ms, warm cache:",
                 "100 further keys, 20 ms:", "save of 40 bytes, 20 ms:", "load:"):  # fmt: skip
        assert line in done.stdout, done.stdout
    assert list(tmp_path.iterdir()) == [kept]  # the server has ended
