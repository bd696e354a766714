"""bench/compare.py: what it writes, with states that are small enough for every machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from compare_lib import memory, page_cache, report, works
from compare_lib.peers.base import Peer
from compare_lib.results import Results
from compare_lib.runner import Runner, Turn, turns
from compare_lib.states import make_state

ROOT = Path(__file__).resolve().parents[2]
WORKS = {work.name: work for work in works.WORKS}


class Broken(Peer):
    name = "broken"

    def save(self, state):
        yield
        raise RuntimeError("the disk is made of cheese")


class Slow(Peer):
    name = "slow"

    def save(self, state):
        yield
        time.sleep(60)
        yield None


class Dead(Peer):
    name = "dead"

    def save(self, state):
        yield
        os._exit(3)


class Forgetful(Peer):
    """Loads zeros."""

    name = "forgetful"

    def save(self, state):
        yield
        (self.directory / "data").write_bytes(b"x" * state.nbytes)
        yield None

    def load_new(self, state):
        yield
        yield {key: torch.zeros_like(tensor) for key, tensor in state.tensors.items()}


class Absent(Peer):
    name = "absent"
    modules = ("no_such_module_at_all",)


@pytest.fixture
def state():
    return make_state("embedding", 0.002)


def measured(state, tmp_path, monkeypatch, peer, work="save", deadline_s=20.0):
    """Records of one turn, and the results that contain it."""
    monkeypatch.setattr("compare_lib.runner.PEERS", [peer])
    results = Results(tmp_path / "out" / "raw.json")
    runner = Runner(state, tmp_path / "work", results, deadline_s)
    return runner.measure(Turn(state.name, WORKS[work], peer.name, 1)), results


@pytest.mark.parametrize(
    "peer, deadline_s, error",
    [
        (Broken, 20, "RuntimeError: the disk is made of cheese"),
        (Slow, 0.5, "not done after 0.5 s"),
        (Dead, 20, "its process died, status 768"),
    ],
)
def test_a_peer_that_fails_is_recorded_as_failed(
    state, tmp_path, monkeypatch, peer, deadline_s, error
):
    (record,), results = measured(state, tmp_path, monkeypatch, peer, deadline_s=deadline_s)
    assert record["error"] == error
    assert Results.load(results.path).runs == [record]


def test_a_peer_that_was_late_is_not_waited_for_again(state, tmp_path, monkeypatch):
    monkeypatch.setattr("compare_lib.runner.PEERS", [Slow])
    results = Results(tmp_path / "raw.json")
    runner = Runner(state, tmp_path / "work", results, 0.5)
    for run in (1, 2):
        runner.measure(Turn(state.name, WORKS["save"], "slow", run))
    errors = results.errors(state.name, "save", "slow")
    assert errors == ["not done after 0.5 s", "not tried again, as it was late before"]


def test_bytes_that_were_not_saved_are_a_failure(state, tmp_path, monkeypatch):
    (record,), _ = measured(state, tmp_path, monkeypatch, Forgetful, "load_cold")
    assert record["error"].startswith("loaded something else than was saved: 'embedding.weight'")


def test_pages_show_failures_and_dashes_with_their_reasons(state, tmp_path, monkeypatch):
    _, results = measured(state, tmp_path, monkeypatch, Broken)
    results.data |= {
        "date": "2000-01-01", "command": [], "machine": {}, "versions": {},
        "peers": {
            peer.name: {
                "is_limit": False, "is_direct": False, "missing": peer.missing(), "cannot": {},
                "cannot_partly": {}, "remarks": (),
            }
            for peer in (Broken, Absent)
        },
        "works": {"save": {"title": "durable full save", "method": "save", "limits": []}},
        "states": {
            state.name: {
                "title": state.title, "tensors": 1, "bytes": state.nbytes,
                "works": {"save": {"bytes": state.nbytes, "page_bytes": None, "impossible": None}},
            }
        },
    }  # fmt: skip
    report.write(results, tmp_path)
    page = (tmp_path / "embedding.md").read_text()
    assert "| broken | failed<sup>1</sup> |" in page
    assert "1. failed: RuntimeError: the disk is made of cheese (1 times)" in page
    assert "| absent | –<sup>2</sup> |" in page
    assert "2. No module named 'no_such_module_at_all'" in page
    assert "embedding, save, broken: RuntimeError" in (tmp_path / "README.md").read_text()


def test_every_peer_has_a_turn_in_every_run_in_a_rotating_order(state):
    peers = [Broken, Slow, Dead]
    order = [(t.run, t.peer) for t in turns(state, [WORKS["save"]], peers, 2)]
    assert order == [
        (1, "broken"), (1, "slow"), (1, "dead"), (2, "slow"), (2, "dead"), (2, "broken")
    ]  # fmt: skip


def test_states_come_from_a_seed_and_have_the_same_bytes():
    experts, embedding = make_state("experts", 0.005), make_state("embedding", 0.005)
    assert experts.nbytes == embedding.nbytes
    assert memory.first_difference(experts.tensors, make_state("experts", 0.005).tensors) is None
    experts.change(experts.every(100)[:1])
    changed = memory.first_difference(experts.tensors, make_state("experts", 0.005).tensors)
    assert changed == "'experts.00050.weight' has other bytes than were saved"


def test_pages_touched_are_those_of_the_tensors():
    tensors = {str(i): torch.full((n,), 1, dtype=torch.uint8) for i, n in enumerate((1, 9000, 50))}
    # each page has a byte that is 1, or precedes one that does
    assert memory.touch_pages(tensors) >= 3
    assert memory.touch_pages({"empty": torch.empty(0)}) == 0


def test_evicted_files_are_gone_from_the_page_cache(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    if page_cache.evict(tmp_path) is None:
        pytest.skip("the kernel has no cachestat (Linux 6.5)")
    assert page_cache.resident_bytes(tmp_path) == 0
    page_cache.warm(tmp_path)
    assert page_cache.resident_bytes(tmp_path) == 1 << 20


def run_compare(tmp_path, *words):
    command = [sys.executable, ROOT / "bench" / "compare.py", "--out", tmp_path / "out", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done


def test_a_run_writes_tables_charts_and_raw_results_and_leaves_nothing_else(tmp_path):
    work = tmp_path / "work"
    small = ("--dir", work, "--scale", "0.002", "--only-states", "experts", "--repeat", "2")
    done = run_compare(
        tmp_path, *small, "--only-peers", "cairn,safetensors", "--only-works", "save,load_cold,keys"
    )
    assert "12 measurements, about" in done.stderr
    assert list(work.iterdir()) == []

    raw = json.loads((tmp_path / "out" / "raw.json").read_text())
    assert len(raw["runs"]) == 12 and not any("error" in run for run in raw["runs"])
    checked = {(run["work"], run["peer"]) for run in raw["runs"] if run.get("checked")}
    assert len(checked) == 4
    page = (tmp_path / "out" / "experts.md").read_text()
    assert page.count("| cairn |") == page.count("| safetensors |") == 3
    assert "≥ 3× any peer" in (tmp_path / "out" / "README.md").read_text()

    (tmp_path / "out" / "experts.md").unlink()
    run_compare(tmp_path, "--report-only")
    assert (tmp_path / "out" / "experts.md").read_text() == page

    resumed = run_compare(
        tmp_path, *small, "--resume", "--only-peers", "cairn,safetensors", "--only-works", "save"
    )
    assert "0 measurements" in resumed.stderr


def test_a_run_draws_a_chart(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install -r bench/requirements.txt")
    run_compare(
        tmp_path, "--dir", tmp_path, "--scale", "0.002", "--only-states", "embedding",
        "--repeat", "1", "--only-peers", "cairn", "--only-works", "save",
    )  # fmt: skip
    assert (tmp_path / "out" / "embedding.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_peer_runs_every_workload_correctly(tmp_path):
    done = run_compare(tmp_path, "--dir", tmp_path, "--scale", "0.002", "--repeat", "1")
    assert "failed" not in done.stderr
