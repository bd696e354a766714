"""bench/regression.py counts, passes with its own baselines, and fails on a loss."""

import json
import shutil
import subprocess
import sys

import pytest
from tool_programs import BIN_DIR, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "bench"))
import regression  # noqa: E402

PROGRAM = BIN_DIR / "cairn_regression"
needs_callgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None or not PROGRAM.exists(),
    reason="valgrind is not installed, or was not when this was built",
)


def run(baselines, *words):
    """Runs a short case."""
    return subprocess.run(
        [sys.executable, REPOSITORY / "bench/regression.py", "--program", PROGRAM,
         "--baselines", baselines, "--only", "digest", *words],
        capture_output=True, text=True,
    )


@pytest.fixture
def baselines(tmp_path):
    """The real baselines, which a test can change, with the toolchain of this machine."""
    toolchain = regression.run_cases(PROGRAM, ["digest"])[0]
    document = json.loads(regression.BASELINES.read_text()) | {"toolchain": toolchain}
    path = tmp_path / "baselines.json"

    def write(**changes):
        path.write_text(json.dumps(document | {"instructions": document["instructions"] | changes}))
        return path

    return write


@needs_callgrind
def test_a_loss_exits_1_and_names_the_case(baselines):
    real = json.loads(baselines().read_text())["instructions"]["digest"]

    lost = run(baselines(digest=real / 3))

    assert lost.returncode == 1, lost.stderr
    assert "LOSS" in lost.stdout
    assert lost.stderr.endswith("of the baseline: digest\n")


@needs_callgrind
def test_what_cannot_be_counted_exits_2(baselines):
    for words in (("--program", "/nonexistent"), ("--baselines", "/nonexistent")):
        failed = run(baselines(), *words)
        assert failed.returncode == 2
        assert failed.stderr.startswith("regression: ")
        assert failed.stderr.count("\n") == 1


def test_losses_are_what_is_above_the_limit_or_has_no_baseline(capsys):
    baselines = {"a": 10.0, "b": 10.0, "c": 10.0}
    figures = {"a": 13.0, "b": 13.1, "c": 2.0, "new": 1.0}

    assert regression.compare(figures, {}, baselines, limit=1.3) == ["b", "new"]
    assert "NO BASELINE" in capsys.readouterr().out


def test_a_dump_of_another_case_is_refused():
    dump = "desc: Trigger: Client Request: digest\ntotals: 42\n"

    assert regression.read_dump(dump, "digest") == 42
    with pytest.raises(regression.CannotCount):
        regression.read_dump(dump, "open")
