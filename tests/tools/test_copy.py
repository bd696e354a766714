"""`kv-admin push`, `pull` and `mirror`: copies between stores in directories."""

import os
import signal
import subprocess

import pytest
import torch

import cairn
from cairn_testing import assert_same, flip_byte, wait_until
from tool_programs import BIN_DIR, steps_of

MIB = 1 << 20


def save_steps(path, count, megabytes=1):
    """Saves `count` steps; each changes one of the tensors of the step before."""
    generator = torch.Generator().manual_seed(3)
    state = {f"layer{i}": torch.randn(megabytes * MIB // 32, generator=generator) for i in range(8)}
    states = {}
    with cairn.open(path, mode="a") as store:
        for step in range(1, count + 1):
            state = {**state, f"layer{step % 8}": torch.full((megabytes * MIB // 32,), float(step))}
            store.save(step, state)
            states[step] = state
    return states


def assert_steps(path, states):
    with cairn.open(path) as store:
        assert store.steps() == sorted(states)
        for step, state in states.items():
            assert_same(store.read(step=step), state)


def test_several_steps_and_the_steps_that_are_there(admin, tmp_path):
    states = save_steps(tmp_path / "a", 4)
    assert admin("push", f"{tmp_path}/a@1,3", tmp_path / "b").status == 0
    assert_steps(tmp_path / "b", {step: states[step] for step in (1, 3)})
    finished = admin("pull", f"{tmp_path}/a@{{3,4}}", tmp_path / "b", status=0)
    assert "step 3: already there" in finished.out
    assert "step 4: copied" in finished.out
    assert_steps(tmp_path / "b", {step: states[step] for step in (1, 3, 4)})


def test_impossible_rates_are_refused(admin, tmp_path):
    save_steps(tmp_path / "a", 1)
    for rate in ("0", "fast"):
        assert admin("push", tmp_path / "a", tmp_path / "c", "--max-rate", rate).status == 2


def test_a_mirror_copies_what_is_not_damaged(admin, tmp_path):
    states = {}
    with cairn.open(tmp_path / "a", mode="a") as store:
        for step in range(1, 5):
            states[step] = {"x": torch.randn(MIB // 4)}
            store.save(step, states[step])
    segments = sorted((tmp_path / "a/segments").iterdir(), key=os.path.getmtime)
    flip_byte(segments[1], 100_000)
    finished = admin("mirror", tmp_path / "a", tmp_path / "b", status=2)
    assert "(step 2" in finished.err and "this step is not copied" in finished.err
    assert "1 step not copied" in finished.err
    assert_steps(tmp_path / "b", {step: states[step] for step in (1, 3, 4)})
    with cairn.open(tmp_path / "a", mode="a") as store:
        store.delete(2)
    assert admin("mirror", tmp_path / "a", tmp_path / "b").status == 0


def test_mirror_copies_all_steps_and_keeps_deleted_ones(admin, tmp_path):
    states = save_steps(tmp_path / "a", 3)
    plan = admin("mirror", tmp_path / "a", tmp_path / "b", "--dry-run")
    assert plan.out.splitlines() == [f"would copy step {step}" for step in (1, 2, 3)]
    assert not (tmp_path / "b").exists()
    assert admin("mirror", tmp_path / "a", tmp_path / "b").status == 0
    assert admin("delete", tmp_path / "a", 1).status == 0
    assert admin("mirror", tmp_path / "a", tmp_path / "b").status == 0
    assert_steps(tmp_path / "b", states)
    words = "mirror", tmp_path / "a", tmp_path / "b", "--prune"
    assert admin(*words, "--dry-run").out == "would delete step 1\n"
    assert admin(*words).status == 0
    assert_steps(tmp_path / "b", {step: states[step] for step in (2, 3)})


def test_prune_with_an_empty_source_deletes_nothing(admin, tmp_path):
    states = save_steps(tmp_path / "b", 1)
    cairn.open(tmp_path / "a", mode="a").close()
    words = "mirror", tmp_path / "a", tmp_path / "b", "--prune"
    assert "--prune would delete all steps" in admin(*words, status=2).err
    assert_steps(tmp_path / "b", states)


def has_steps(path, steps):
    return (path / "CAIRN").exists() and steps_of(path) == steps


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_mirror_follows_until_a_signal(tmp_path, number):
    state = {"w": torch.arange(100_000)}
    with cairn.open(tmp_path / "a", mode="a") as store:
        store.save(1, state)
        words = [BIN_DIR / "kv-admin", "mirror", tmp_path / "a", tmp_path / "b", "--follow"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: has_steps(tmp_path / "b", [1]))
            for step in (2, 3):
                store.save(step, {"w": state["w"] + step})
                wait_until(lambda: has_steps(tmp_path / "b", list(range(1, step + 1))))
            process.send_signal(number)
            out, err = process.communicate(timeout=1200)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert err == b""
    assert [line.split(b":")[0] for line in out.splitlines()] == [b"step 1", b"step 2", b"step 3"]
    assert os.listdir(tmp_path / "b" / "leases") == []
    assert_steps(tmp_path / "b", {1: state, 2: {"w": state["w"] + 2}, 3: {"w": state["w"] + 3}})
