"""`kv-admin compact` and `compression`: the store shrinks, and no step changes."""


import numpy as np
import pytest

import cairn
from cairn import Invalid
from cairn_testing import assert_same
from tool_programs import run_program


def state_of(step: int, rng: np.random.Generator) -> dict:
    """Half of it is the same in all steps of ten."""
    frozen = np.random.default_rng(step // 10).integers(0, 255, 1_000_000, np.uint8)
    return {"frozen": frozen, "trained": rng.integers(0, 255, 1_000_000, np.uint8), "step": step}


def assert_steps(store: cairn.Store, expected: dict[int, dict]) -> None:
    assert store.steps() == sorted(expected)
    for step, state in expected.items():
        assert_same(store.read(step=step), state)


@pytest.fixture
def saved(tmp_path):
    """A store in which 3 of 30 steps are left, and what they contain."""
    rng = np.random.default_rng(1)
    path = tmp_path / "store"
    expected = {}
    with cairn.open(path, mode="a", grace=0) as store:
        for step in range(30):
            expected[step] = state_of(step, rng)
            store.save(step, expected[step])
        doomed = [step for step in expected if step % 10 != 5]
        store.delete(*doomed)
    for step in doomed:
        del expected[step]
    return path, expected


def segment_bytes(path) -> int:
    return sum(file.stat().st_size for file in (path / "segments").iterdir())


def test_the_command(saved):
    path, expected = saved
    before = segment_bytes(path)
    assert "would rewrite" in run_program("kv-admin", "compact", path, "--dry-run", status=0).out
    assert segment_bytes(path) == before
    report = run_program("kv-admin", "compact", path, "--now", "--json", status=0).json()
    assert report["rewritten_steps"] == len(expected)
    assert report["new_bytes"] <= segment_bytes(path) < before
    assert "nothing to do" in run_program("kv-admin", "compact", path).out
    with cairn.open(path, mode="a", grace=0) as store:
        assert_steps(store, expected)
        with pytest.raises(Invalid, match="max_rate"):
            store.compact(max_rate=0)
    assert run_program("kv-dump", "verify", path).status == 0


def test_the_command_refuses_what_it_cannot_do(saved):
    path, _ = saved
    with cairn.open(path, mode="a"):
        assert "writer" in run_program("kv-admin", "compact", path, status=2).err


def test_compress(saved):
    path, expected = saved
    with cairn.open(path, mode="a", grace=0) as store:
        store.save(90, expected[25] | {"trained": np.arange(250_000, dtype=np.uint32), "step": 90})
    words = "compact", path, "--compress", "--now"
    assert "compressed" in run_program("kv-admin", *words, status=0).out
    assert "nothing to do" in run_program("kv-admin", "compact", path, "--compress").out
    chunks = run_program("kv-dump", "chunks", f"{path}@90", "trained", "--json").json()["chunks"]
    assert {chunk["encoding"] for chunk in chunks} == {"compressed"}
    space = run_program("kv-dump", "space", f"{path}@90", "--depth", "0", "--json").json()
    trained = {part["prefix"]: part for part in space["space"]}["trained"]
    assert trained["compressed_chunks"] == len(chunks)
    assert trained["stored_bytes"] < 0.7 * trained["logical_bytes"]
    with cairn.open(path) as store:
        assert np.array_equal(store.read("trained", step=90)["trained"], np.arange(250_000))
    assert run_program("kv-dump", "verify", path).status == 0


def test_the_setting_of_a_store(saved):
    path, _ = saved
    assert run_program("kv-admin", "compression", path).out.startswith("off")
    on = run_program("kv-admin", "compression", path, "--on")
    assert on.status == 0 and on.out.startswith("on") and "compact" in on.out
    shown = run_program("kv-admin", "compression", path, "--json").json()
    assert shown == {"store": str(path), "compress": True}
    with cairn.open(path, mode="a") as store:
        store.save(90, {"trained": np.arange(250_000, dtype=np.uint32)})
        assert "writer" in run_program("kv-admin", "compression", path, "--off", status=2).err
    chunks = run_program("kv-dump", "chunks", f"{path}@90", "trained", "--json").json()["chunks"]
    assert {chunk["encoding"] for chunk in chunks} == {"compressed"}
    assert run_program("kv-admin", "compression", path, "--off").out.startswith("off")


def test_the_space_of_segments(saved):
    path, _ = saved
    space = run_program("kv-dump", "space", path, "--segments", "--json").json()
    assert space["file_bytes"] == segment_bytes(path)
    parts = space["live_bytes"] + space["dead_bytes"] + space["overhead_bytes"]
    assert parts == space["file_bytes"]
    dry = run_program("kv-admin", "compact", path, "--dry-run", "--json").json()
    assert space["live_bytes"] == dry["live_bytes"] == 2 * 3_000_000
    assert space["shared_bytes"] == 0  # no two of the steps that are left have bytes in common
    assert sum(one["dead_bytes"] for one in space["segments"]) == space["dead_bytes"]
    text = run_program("kv-dump", "space", path, "--segments").out
    assert "SHARED" in text and "OVERHEAD" in text and "(all)" in text
    assert "without a step" in run_program("kv-dump", "space", f"{path}@5", "--segments").err
