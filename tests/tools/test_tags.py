"""`kv-admin tag` and `prune`, STORE@TAG, and what kv-dump shows of tags and metrics."""

import pytest

import cairn
from tool_programs import into_store, run_program, steps_of


@pytest.fixture
def path(tmp_path):
    """A store with three steps."""
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step, loss in ((100, 2.0), (200, 1.0), (300, 3.0)):
            store.save(step, {"a": step}, metrics={"loss": loss}, note=f"note of {step}")
    return tmp_path / "store"


def test_a_tag_is_set_used_moved_and_removed(path):
    assert run_program("kv-admin", "tag", f"{path}@200", "best").status == 0
    assert "200" in run_program("kv-dump", "keys", f"{path}@best").out
    assert run_program("kv-admin", "tag", f"{path}@best", "release").status == 0
    assert run_program("kv-admin", "tag", f"{path}@100", "best").status == 0
    with cairn.open(path) as store:
        assert store.tags() == {"best": 100, "release": 200}
    assert run_program("kv-admin", "untag", path, "best").status == 0
    assert run_program("kv-admin", "untag", path, "best").status == 2
    assert run_program("kv-admin", "untag", f"{path}@200", "release").status == 0
    assert run_program("kv-admin", "tag", f"{path}@100", "17").status == 2
    with cairn.open(path) as store:
        assert store.tags() == {}


def test_kv_dump_shows_them(path):
    run_program("kv-admin", "tag", f"{path}@200", "best")
    shown = run_program("kv-dump", "steps", path).out
    assert "TAGS" in shown and "loss=1" in shown and "note of 300" in shown
    steps = run_program("kv-dump", "steps", path, "--json").json()["steps"]
    assert steps[1]["tags"] == ["best"]
    assert steps[1]["metrics"] == {"loss": 1.0} and steps[1]["note"] == "note of 200"
    assert "tags" not in steps[0]
    assert "best: 200" in run_program("kv-dump", path).out
    assert run_program("kv-dump", path, "--json").json()["tags"] == {"best": 200}


def test_a_policy_is_kept_in_the_store(tmp_path):
    path = tmp_path / "store"
    for step in range(1, 6):
        into_store(path, {"a": 1}, first=step, metrics={"loss": 10 - step})
    assert "no policy" in run_program("kv-admin", "policy", path).out
    assert "no policy" in run_program("kv-admin", "prune", path).err
    words = "policy", path, "--keep-last", "2", "--keep-best", "loss:1:max"
    assert "the 1 with the highest loss" in run_program("kv-admin", *words, status=0).out
    shown = run_program("kv-admin", "policy", path, "--json").json()
    assert (shown["keep_last"], shown["keep_every"], shown["keep_best"]) == (2, 0, ["loss:1:max"])
    assert "deleted 2 steps, 3 remain" in run_program("kv-admin", "prune", path).out
    into_store(path, {"a": 1}, first=6)
    assert steps_of(path) == [1, 5, 6]
    assert "no policy" in run_program("kv-admin", "policy", path, "--none").out
