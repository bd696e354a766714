"""bench/compare.py: what it writes, with states that are small enough for every machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from common import measure, works
from common.library import Library
from common.states import make_state
from common.works import Runner, Turn

ROOT = Path(__file__).resolve().parents[2]
WORKS = {work.name: work for work in works.WORKS}


class Broken(Library):
    name = "broken"

    def save(self, step, state):
        raise RuntimeError("the disk is made of cheese")


class Slow(Library):
    name = "slow"

    def save(self, step, state):
        time.sleep(60)


class Dead(Library):
    name = "dead"

    def save(self, step, state):
        os._exit(3)


class Forgetful(Library):
    """Loads zeros."""

    name = "forgetful"

    def save(self, step, state):
        self.path(step).write_bytes(b"x")

    def load(self, step, like):
        return {key: torch.zeros_like(tensor) for key, tensor in like.items()}


class Absent(Library):
    name = "absent"
    modules = ("no_such_module_at_all",)


@pytest.fixture
def state():
    return make_state("embedding", 0.002)


@pytest.mark.parametrize(
    "kind, deadline_s, error",
    [
        (Broken, 300, "RuntimeError: the disk is made of cheese"),
        (Slow, 0.5, "not done after 0.5 s"),
        (Dead, 300, "its process died, status 768"),
    ],
)
def test_a_library_that_fails_is_recorded_as_failed(state, tmp_path, kind, deadline_s, error):
    runner = Runner(state, tmp_path, deadline_s)
    (record,) = runner.measure(Turn(WORKS["save"], kind, 1))
    assert record == {
        "error": error, "state": "embedding", "work": "save", "peer": kind.name, "run": 1
    }  # fmt: skip


def test_a_library_that_was_late_is_not_waited_for_again(state, tmp_path):
    runner = Runner(state, tmp_path, 0.5)
    found = [runner.measure(Turn(WORKS["save"], Slow, run))[0]["error"] for run in (1, 2)]
    assert found == ["not done after 0.5 s", "not tried again, as it was late before"]


def test_bytes_that_were_not_saved_are_a_failure(state, tmp_path):
    (record,) = Runner(state, tmp_path, 300).measure(Turn(WORKS["load_cold"], Forgetful, 1))
    assert record["error"].startswith("loaded something else than was saved: 'embedding.weight'")


def test_a_library_that_is_not_installed_is_reported():
    assert Absent.missing().startswith("No module named 'no_such_module_at_all'")
    assert WORKS["keys"].why_not(Broken) == "has no such call"
    assert WORKS["load_existing"].why_not(Broken) == "can only create new tensors"


def test_states_come_from_a_seed_and_have_the_same_bytes():
    experts, embedding = make_state("experts", 0.005), make_state("embedding", 0.005)
    assert experts.nbytes == embedding.nbytes
    same = make_state("experts", 0.005).tensors
    assert measure.first_difference(experts.tensors, same) is None
    experts.change(experts.every(100)[:1])
    changed = measure.first_difference(experts.tensors, same)
    assert changed == "'experts.00050.weight' has other bytes than were saved"


def run_compare(tmp_path, *words):
    command = [sys.executable, ROOT / "bench" / "compare.py", "--out", tmp_path / "out", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done


def test_a_run_writes_tables_and_raw_results_and_leaves_nothing_else(tmp_path):
    work = tmp_path / "work"
    small = ("--dir", work, "--scale", "0.002", "--only-states", "embedding", "--repeat", "2")
    peers = ("--only-peers", "cairn,safetensors")
    done = run_compare(tmp_path, *small, *peers, "--only-works", "save,load_cold,rows,columns")
    assert "embedding: 16 measurements" in done.stderr
    assert list(work.iterdir()) == []

    raw = json.loads((tmp_path / "out" / "raw.json").read_text())
    assert len(raw["runs"]) == 16 and not any("error" in run for run in raw["runs"])
    checked = {(run["work"], run["peer"]) for run in raw["runs"] if run.get("checked")}
    assert len(checked) == 6
    page = (tmp_path / "out" / "embedding.md").read_text()
    assert page.count("| cairn |") == page.count("| safetensors |") == 4
    assert "- dcp: was not measured in this run" in page

    resumed = run_compare(tmp_path, *small, *peers, "--resume", "--only-works", "save")
    assert "embedding: 0 measurements" in resumed.stderr
    page = (tmp_path / "out" / "embedding.md").read_text()
    assert page.count("| cairn |") == 1


@pytest.mark.slow
def test_every_library_runs_every_workload_correctly(tmp_path):
    done = run_compare(tmp_path, "--dir", tmp_path, "--scale", "0.002", "--repeat", "1")
    assert "failed" not in done.stderr
