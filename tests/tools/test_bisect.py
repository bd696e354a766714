"""`kv-admin bisect`: the step from which a command fails, and what is read for it."""

import os
import sys

import numpy as np
import pytest
from cairn_testing import segment_files

import cairn
from tool_programs import run_program

CHECK = """
import sys
from safetensors.numpy import load_file
tensors = load_file(sys.argv[1])
assert set(tensors) >= {"w"}, tensors
sys.exit(int(tensors["w"][0] >= int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """40 steps of one run, of which one page changes in each, and a fork at step 20."""
    path = tmp_path_factory.mktemp("bisect") / "store"
    w, ids = np.zeros(1_000_000, np.float32), np.arange(7, dtype=np.int8)
    with cairn.open(path, mode="a") as store:
        for step in range(1, 41):
            w[0] = step
            store.save(step, {"ids": ids, "w": w, "step": step})
        store.read("w", step=20)
        store.save(100, {"ids": ids, "w": w})
        store.tag(1, "good")
    return path


def bisect(store, good, bad, *words, status=0, code=CHECK, **options):
    command = [sys.executable, "-c", code, *words]
    words = "bisect", store, good, bad, *options.pop("options", ()), "--", *command
    return run_program("kv-admin", *words, status=status, **options)


def test_it_finds_the_step_and_reads_only_differences(run, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    found = bisect(run, "good", 40, "{file}", 23, options=["--json"], env=environment).json()
    assert (found["last_good"], found["first_bad"], found["not_tried"]) == (22, 23, [])
    first, *others = found["runs"]
    assert (first["step"], first["outcome"], first["how"]) == (40, "fails", "status 1")
    assert first["read_bytes"] == 4_000_007
    assert all(run["read_bytes"] <= 2 * 65536 for run in others)
    assert len(found["runs"]) <= 8
    assert not list(tmp_path.iterdir())  # the file is removed
    text = bisect(run, 1, 40, "{file}", 23).out
    assert "Step 23 is the first that fails; step 22 is the last that passes." in text


def test_the_command_may_read_the_store_itself(run):
    code = """
import sys, cairn
with cairn.open(sys.argv[1]) as store:
    print("to standard error")
    sys.exit(store.read("step", step=int(sys.argv[2]))["step"] >= 5)
"""
    before = {path: path.stat().st_mtime_ns for path in segment_files(run)}
    found = bisect(run, 1, 40, "{store}", "{step}", code=code, options=["--json"])
    assert found.json()["first_bad"] == 5 and "to standard error" in found.err
    assert {path: path.stat().st_mtime_ns for path in segment_files(run)} == before


def test_steps_that_are_skipped_are_named(run):
    code = "import sys; step = int(sys.argv[1]); sys.exit(125 if 8 < step < 12 else step > 10)"
    found = bisect(run, 1, 40, "{step}", code=code, options=["--json"]).json()
    assert (found["last_good"], found["first_bad"]) == (8, 12)
    assert found["not_tried"] == [9, 10, 11]
    assert "3 steps could not be tried: 9, 10, 11" in bisect(run, 1, 40, "{step}", code=code).out


def test_a_crash_fails(run):
    code = "import os, sys; int(sys.argv[1]) < 30 or os.abort()"
    found = bisect(run, 1, 40, "{step}", code=code, options=["--json"]).json()
    assert found["first_bad"] == 30 and found["runs"][0]["how"] == "signal 6"


def test_a_step_with_other_tensors_is_written_again(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step in range(1, 9):
            state = {"w": np.float32([step]), "view": np.float32([[step, 2], [3, 4]])[:, :1]}
            store.save(step, state if step < 5 else {**state, "more": np.zeros(step)})
    found = bisect(tmp_path / "store", 1, 8, "{file}", 6, options=["--json"]).json()
    assert found["first_bad"] == 6
    words = ("--json", "--keys", "w")
    found = bisect(tmp_path / "store", 1, 8, "{file}", 6, options=words).json()
    assert found["first_bad"] == 6 and found["runs"][0]["read_bytes"] == 4


@pytest.mark.parametrize(
    "good, bad, words, code, message",
    [
        (100, 40, ["{file}", 23], CHECK, "is not on the way to step 40"),
        (40, 1, ["{file}", 23], CHECK, "is not on the way to step 1"),
        (3, 3, ["{file}", 23], CHECK, "is not on the way to step 3"),
        (1, 99, ["{file}", 23], CHECK, "no such step"),
        (1, 40, ["{file}", 41], CHECK, "the command passes on this step, which should be bad"),
        (1, 40, ["{file}", 0], CHECK, "the command fails on this step, which should be good"),
        (1, 40, ["file"], CHECK, "does not name the checkpoint"),
        (1, 40, ["{step}"], "import sys; sys.exit(127)", "could not be run"),
    ],
)
def test_what_cannot_be_bisected_is_refused(run, good, bad, words, code, message):
    assert message in bisect(run, good, bad, *words, code=code, status=2).err


def test_keys_that_no_step_has_are_refused(run):
    words = "bisect", run, "1", "40", "--keys", "nothing", "--", "cat", "{file}"
    assert "no tensor matches" in run_program("kv-admin", *words, status=2).err
