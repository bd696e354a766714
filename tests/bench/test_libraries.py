"""bench/libraries.py: it measures Cairn and safetensors, and writes its page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from libraries_lib.report import flip_rows, kill_rows, time_rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(600)
def test_libraries_are_measured_and_a_page_is_written(tmp_path):
    words = ["--dir", tmp_path / "dir", "--out", tmp_path, "--layers", "1", "--repeat", "1",
             "--kills", "2", "--flips", "4"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "libraries.py", "cairn", "safetensors", *words],
        capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    result = json.loads((tmp_path / "comparison.json").read_text())
    cairn, other = result["libraries"]["cairn"], result["libraries"]["safetensors"]
    for library in cairn, other:
        [run] = library["runs"]
        assert run["load"]["equal"] and run["load"]["seconds"] > 0
        assert run["load_columns"]["wanted_bytes"] < run["load"]["wanted_bytes"]
        assert sum(library["kill_new"]["outcomes"].values()) == 2
        assert sum(library["flip"]["all"].values()) == 4
    assert not {"damaged", "nothing"} & cairn["kill_new"]["outcomes"].keys()
    assert "wrong" not in cairn["flip"]["all"] and "wrong" not in cairn["flip"]["records"]
    assert cairn["runs"][0]["space_2"]["bytes"] < other["runs"][0]["space_2"]["bytes"]
    page = (tmp_path / "comparison.md").read_text()
    assert "## Killed saves" in page and "| safetensors |" in page
    assert list((tmp_path / "dir").iterdir()) == []


def test_unknown_libraries_are_refused(tmp_path):
    program = ROOT / "bench" / "libraries.py"
    done = subprocess.run(
        [sys.executable, program, "--dir", tmp_path, "nothing"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "unknown libraries ['nothing']" in done.stderr


def test_the_tables_contain_ratios_and_shares():
    def library(title, seconds):
        return {
            "title": title,
            "runs": [{"save_all": {"durable": seconds}}],
            "kill_new": {"outcomes": {"old": 3, "new": 1}, "left": 0.5},
            "flip": {"all": {"error": 2}, "records": {"wrong": 1}},
        }

    libraries = {"cairn": library("Cairn", 0.1), "other": library("Other", 0.2)}

    assert time_rows(libraries)[1] == ["save, all changed", "100", "200 (2×)"]
    assert kill_rows(libraries)[2] == ["Other", "a new step", "1", "3", "0", "0", "0", "50 %"]
    assert flip_rows(libraries)[3:] == [
        ["Other", "all bytes", "2", "0", "0", "0"],
        ["Other", "the records", "0", "1", "0", "0"],
    ]
