"""bench/integrations.py: it measures a library with both contenders, and writes its page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("accelerate")

from integrations_lib.reasons import REASONS
from integrations_lib.report import FIGURES, Behind, reason_of, table, write_page

ROOT = Path(__file__).resolve().parents[2]


def test_a_library_is_measured_and_added_to_a_page(tmp_path):
    out, known = tmp_path / "out", tmp_path / "known.json"
    runs = {one: [dict.fromkeys(FIGURES, 1.0)] for one in ("own", "cairn")}
    other = {
        "title": "Other", "text": "Kept.", "rivals": {"own": "cairn"}, "ranks": 1, "repeat": 1,
        "versions": {}, "parameters": 1.0, "workloads": {"full": runs}, "measured": "before",
    }  # fmt: skip
    known.write_text(json.dumps({"libraries": {"other": other}}))
    words = ["--dir", tmp_path / "dir", "--out", out, "--parameters", "1e5", "--repeat", "2"]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "integrations.py", *words, "--add-to", known,
         "accelerate"],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    result = json.loads((out / "integrations.json").read_text())
    assert result["libraries"]["other"] == other
    found = result["libraries"]["accelerate"]
    assert list(found["workloads"]) == ["full", "frozen"]
    for contenders in found["workloads"].values():
        assert list(contenders) == ["own", "cairn, async"]
        for figures in (run for of_it in contenders.values() for run in of_it):
            assert figures.keys() == FIGURES.keys() and min(figures.values()) > 0
            assert figures["stall"] <= figures["longest_stall"] <= figures["saved"]
            assert figures["saved"] <= figures["durable"]
        assert all(run["saved"] == run["durable"] for run in contenders["cairn, async"])
        assert all(run["saved"] < run["durable"] for run in contenders["own"])
    frozen = found["workloads"]["frozen"]
    assert frozen["cairn, async"][0]["bytes"] < frozen["own"][0]["bytes"]
    page = (out / "integrations.md").read_text()
    assert "## accelerate" in page and "## Other" in page and "## Where Cairn is not ahead" in page
    assert list((tmp_path / "dir").iterdir()) == []


def test_a_library_that_fails_is_reported(tmp_path):
    program = ROOT / "bench" / "integrations.py"
    done = subprocess.run(
        [sys.executable, program, "--dir", tmp_path, "nothing"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "unknown libraries ['nothing']" in done.stderr


def figures(**changed):
    return [{**dict.fromkeys(FIGURES, 2.0), **changed}]


def test_figures_where_cairn_is_not_ahead_are_listed(tmp_path):
    library = {
        "title": "Some", "text": "Text.", "rivals": {"own": "cairn"}, "versions": {"some": "1"},
        "parameters": 1e6, "repeat": 1, "measured": "today",
        "workloads": {"full": {"own": figures(stall=1.0, saved=8.0), "cairn": figures()}},
    }  # fmt: skip
    rows = table(library, "full")
    assert rows[1][:2] == ["own", "1,000 (0.5×)"] and rows[2][:2] == ["Cairn", "2,000"]
    result = {"machine": {"cores": "2"}, "versions": {"cairn": "x"}, "libraries": {"some": library}}
    write_page(result, tmp_path)
    page = (tmp_path / "integrations.md").read_text()
    assert "Some (full, own), stall: 0.5×" in page
    assert "Some (full, own), ten saves, durable: 1×" in page
    assert "8 (4×)" in page


def test_the_most_specific_reason_is_stated(monkeypatch):
    monkeypatch.setitem(REASONS, ("", "", "stall"), "general")
    monkeypatch.setitem(REASONS, ("some", "", "stall"), "special")
    one = Behind("some", "full", "own", "stall", 0.5)
    assert reason_of(one) == "special"
    assert reason_of(one._replace(library="else")) == "general"
    assert reason_of(one._replace(library="else", figure="none")) is None
