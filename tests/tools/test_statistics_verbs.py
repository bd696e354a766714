"""`kv-dump steps` and `keys` with conditions on values, `history` with the values, and `kv-admin
statistics`, which computes what saves have not recorded."""

import numpy as np
import pytest

import cairn
from tool_programs import run_program


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The weight of step 4 and 5 has a NaN; step 2 has no statistics."""
    path = tmp_path_factory.mktemp("statistics") / "store"
    weight = np.linspace(-1, 2, 30_000, dtype=np.float32)
    with cairn.open(path, mode="a") as opened:
        for step in range(1, 6):
            weight *= 1.5
            if step == 4:
                weight[7] = np.nan
            state = {"model": {"weight": weight, "bias": np.zeros(10, np.float32)}, "lr": 0.1}
            opened.save(step, state, tuning=cairn.SaveTuning(statistics=step != 2))
    return path


def keys_where(store, condition, *words):
    words = "keys", store, *words, "--where", condition, "--json"
    return [key["fqn"] for key in run_program("kv-dump", *words, status=0).json()["keys"]]


def test_steps_names_the_step_where_it_began(store):
    found = run_program("kv-dump", "steps", store, "--where", "nan>0", "--json").json()["steps"]
    found = [(step["step"], step["matching_tensors"], step["first_match"]) for step in found]
    assert found == [(4, 1, "model.weight"), (5, 1, "model.weight")]
    text = run_program("kv-dump", "steps", store, "--where", "nan > 0")
    assert "FIRST MATCH" in text.out and "model.weight" in text.out
    assert "No step" in run_program("kv-dump", "steps", store, "--where", "nan>1", status=0).out


def test_steps_names_the_steps_of_which_it_is_not_known(store):
    words = "steps", store, "--where", "nan>0"
    assert run_program("kv-dump", *words, "--json").json()["steps_with_unknown_values"] == [2]
    text = run_program("kv-dump", *words, status=0).out
    assert "Not known of 1 step, which has tensors without statistics: 2." in text
    assert "without statistics" not in run_program("kv-dump", "steps", store).out


def test_statistics_that_are_computed_later_are_those_of_a_save(tmp_path, admin, dump):
    def saved(name, has_statistics):
        values = np.linspace(-1, 2, 2_000_000, dtype=np.float32)
        with cairn.open(tmp_path / name, mode="a") as opened:
            for step in range(1, 7):
                values[step] = np.nan if step > 3 else step
                values[-step:] = np.inf if step == 5 else 0
                state = {"w": values, "ids": np.arange(step), "empty": np.zeros(0)}
                state["text"] = "x" * 9000
                tuning = cairn.SaveTuning(
                    statistics=has_statistics, deltas=step % 2 == 0, compress=True
                )
                opened.save(step, state, tuning=tuning, tags=[f"t{step}"])
        return tmp_path / name

    def recorded(store):
        with cairn.open(store) as opened:
            return {step: opened.statistics(step) for step in opened.steps()}

    store, expected = saved("store", False), recorded(saved("expected", True))
    before = dump("diff", f"{store}@1", f"{store}@6", "--values", "--json").json()
    steps = dump("steps", store, "--json").json()
    assert recorded(store) == {step: {} for step in range(1, 7)}
    found = admin("statistics", f"{store}@{{2,3}}", "--json", status=0).json()
    assert found["steps"] == 2
    assert {step for step, one in recorded(store).items() if one} == {2, 3}

    assert "for 4 steps" in admin("statistics", f"{store}@{{1..6}}", status=0).out

    assert repr(recorded(store)) == repr(expected)  # NaN does not equal itself
    assert dump("steps", store, "--json").json() == steps
    assert dump("diff", f"{store}@1", f"{store}@6", "--values", "--json").json() == before
    dump("verify", store, status=0)
    assert "nothing to do" in admin("statistics", f"{store}@{{1..6}}", status=0).out
    assert "no such step" in admin("statistics", f"{store}@99", status=2).err


def test_keys_select_tensors_by_conditions(store):
    assert keys_where(store, "nan>0") == ["model.weight"]
    assert keys_where(store, "zeros==10 and max<=0 and min>=0") == ["model.bias"]
    assert keys_where(store, "absmax!=0") == ["model.weight"]
    assert keys_where(store, "count>=10", "model.bias") == ["model.bias"]
    assert keys_where(store, "bytes<41") == ["model.bias"]
    assert keys_where(store, "max==inf") == []


def test_keys_shows_statistics(store):
    rows = run_program("kv-dump", "keys", f"{store}@1", "--statistics", "--json").json()["keys"]
    weight = {row["fqn"]: row for row in rows}["model.weight"]["statistics"]
    assert weight["count"] == 30_000
    assert weight["min"] == pytest.approx(-1.5)
    assert weight["max"] == pytest.approx(3)
    assert weight["mean"] == pytest.approx(0.75, rel=1e-4)
    text = run_program("kv-dump", "keys", f"{store}@1", "--statistics").out
    assert "MEAN" in text and "-1.5" in text
    chunks = run_program("kv-dump", "chunks", f"{store}@4", "model.weight", "--json").json()
    assert chunks["chunks"][0]["statistics"]["nan"] == 1


def test_tensors_without_statistics_are_counted(store):
    words = ("keys", f"{store}@2", "--where", "nan>0")
    text = run_program("kv-dump", *words).out
    assert "No tensor of step 2 matches." in text
    # The bias has those of step 1, because its bytes are the same.
    assert f"of 1 tensor; to compute them: kv-admin statistics {store}@2" in text
    # Their number is known last, so that tensors are named as soon as they are read.
    found = run_program("kv-dump", *words, "--json").json()
    assert list(found) == ["store", "step", "keys", "tensors_without_statistics"]


def test_history_shows_the_values_of_each_version(store):
    versions = run_program("kv-dump", "history", store, "model.weight", "--json").json()["versions"]
    counts = [version.get("statistics", {}).get("nan") for version in versions]
    assert counts == [0, None, 0, 1, 1]
    assert "NAN" in run_program("kv-dump", "history", store, "model.weight").out
    assert "NAN" not in run_program("kv-dump", "history", store, "lr").out


@pytest.mark.parametrize("condition", ["nan", "nan>", "nan>x", "what>1", ">1", "nan>0 and ", " "])
def test_a_condition_that_is_none_is_refused(store, condition):
    refused = run_program("kv-dump", "keys", store, "--where", condition, status=2)
    assert "is not a condition" in refused.err and len(refused.err.splitlines()) == 1


def test_history_has_columns_for_statistics_from_the_first_version_that_has_some(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as opened:
        for step in range(4):
            tuning = cairn.SaveTuning(statistics=step >= 2)
            opened.save(step, {"w": np.full(3, step, np.float32)}, tuning=tuning)
    lines = run_program("kv-dump", "history", tmp_path / "store", "w").out.splitlines()
    assert ["MEAN" in line for line in lines] == [False, False, False, True, False, False]
    assert [line.split()[0] for line in lines] == ["STEP", "0", "1", "STEP", "2", "3"]
