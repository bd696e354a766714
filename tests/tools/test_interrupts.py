"""kv-admin is interrupted by Ctrl-C or SIGTERM: a change is made completely or not at all."""

import random
import signal
import subprocess
import time
from functools import partial

import cairn
import pytest
import torch
from cairn_testing import wait_until
from safetensors.torch import load_file, save_file

from tool_programs import BIN_DIR, assert_equal, run_program, steps_of

STATE = {f"layers.{i}": torch.randn(250_000, generator=torch.Generator().manual_seed(i))
         for i in range(40)}  # 40 MB


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_file(STATE, file)
    return file


def run_interrupted(number, wait, *words):
    """Runs kv-admin, and sends it a signal after `wait()`. Returns its status and its error."""
    process = subprocess.Popen([BIN_DIR / "kv-admin", *map(str, words)], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    wait()
    process.send_signal(number)
    _, err = process.communicate(timeout=1200)
    return process.returncode, err.decode()


def delays(longest, rounds=8):
    rng = random.Random(1)
    return [partial(time.sleep, rng.uniform(0, longest)) for _ in range(rounds)]


def seconds_of(*words):
    begin = time.monotonic()
    run_program("kv-admin", *words, status=0)
    return time.monotonic() - begin


def expect_unharmed(store, steps):
    """The store has the steps, no lease, and after the next open for writing nothing else."""
    if not (store / "CAIRN").exists():
        assert steps == []
        return
    with cairn.open(store) as reader:
        assert reader.steps() == steps
        for step in steps:
            assert_equal(reader.read(step=step, flat=True), STATE)
    cairn.open(store, mode="a", grace=0).close()
    segments = list((store / "segments").iterdir()) if (store / "segments").exists() else []
    assert len(segments) <= len(steps) and not list((store / "leases").iterdir())
    run_program("kv-dump", "verify", store, status=0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_import_is_complete_or_absent(model, tmp_path, number):
    longest = seconds_of("import", tmp_path / "first", "--step", 1, model)
    for i, delay in enumerate(delays(1.2 * longest)):
        store = tmp_path / f"store{i}"
        status, err = run_interrupted(number, delay, "import", store, "--step", 1, model)
        # A signal before the program has its handler ends it.
        assert status in (0, 2, -number), err
        expect_unharmed(store, [1] if status == 0 else [])
        assert status != 2 or "stopped" in err or "cancelled" in err, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_export_is_complete_or_absent(model, tmp_path, number):
    store = tmp_path / "store"
    seconds_of("import", store, "--step", 1, model)
    longest = seconds_of("export", store, tmp_path / "first.safetensors")
    for i, delay in enumerate(delays(1.2 * longest)):
        out = tmp_path / "out" / f"{i}.safetensors"
        out.parent.mkdir(exist_ok=True)
        status, err = run_interrupted(number, delay, "export", store, out)
        assert status in (0, 2, -number), err
        assert [path.name for path in out.parent.iterdir()] == ([out.name] if status == 0 else [])
        if status == 0:
            assert_equal(load_file(out), STATE)
            out.unlink()
    expect_unharmed(store, [1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_push_is_continued(model, tmp_path, number):
    store, other = tmp_path / "store", tmp_path / "other"
    seconds_of("import", store, "--step", 1, model)
    words = "push", store, other, "--max-rate", "1K"  # it takes hours
    has_begun = partial(wait_until, lambda: list(other.glob("segments/*")))
    status, err = run_interrupted(number, has_begun, *words)
    is_told = "it continues when it is started again" in err
    assert (status, is_told) == ((-9, False) if number == signal.SIGKILL else (2, True)), err
    assert steps_of(other) == []
    seconds_of("push", store, other)
    expect_unharmed(other, [1])
