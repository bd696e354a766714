"""`kv-dump log` and `blame`: the tree of steps, and what changed a key on the way to a step."""

import numpy as np
import pytest

import cairn
from tool_programs import run_program


def graph(store):
    """The graph and the number of each line of `kv-dump log`."""
    lines = run_program("kv-dump", "log", store, status=0).out.splitlines()[1:]
    width = max((line.find("  20") for line in lines), default=-1)  # the years of SAVED
    return [line[: width if width > 0 else None].rstrip() for line in lines]


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """Step 20 continues twice; step 50, from which two steps continued, is deleted."""
    path = tmp_path_factory.mktemp("descent") / "store"
    w = np.zeros(1000, np.float32)
    with cairn.open(path, mode="a") as store:

        def save(*steps, since=None, **annotations):
            if since is not None:
                w[:] = store.read("w", step=since)["w"]
            for step in steps:
                w[:10] += step
                tuning = cairn.SaveTuning(statistics=True)
                store.save(step, {"w": w, "step": step}, tuning=tuning, **annotations)

        save(10, 20, 30, 40)
        save(31, 41, since=20)
        save(100, since=10, note="from ten")
        save(50, since=40)
        save(51, since=50)
        save(52, since=50)
        store.tag(41, "best")
        store.delete(50)
    return path


def test_log_draws_the_tree(forks):
    assert graph(forks) == [
        "* 52",
        "| * 51",
        "|/",
        "o 50 (not in the store)",
        "* 100",
        "| * 41",
        "| * 31",
        "| | * 40",
        "| | * 30",
        "| |/",
        "| * 20",
        "|/",
        "* 10",
    ]
    text = run_program("kv-dump", "log", forks).out
    assert "best" in text and "from ten" in text


def test_log_lists_parents_and_children(forks):
    steps = run_program("kv-dump", "log", forks, "--json", status=0).json()["steps"]
    steps = {step["step"]: step for step in steps}
    assert steps[20]["children"] == [30, 31] and steps[10]["children"] == [20, 100]
    assert steps[31]["parent"]["step"] == 20 and steps[31]["parent"]["present"]
    assert steps[51]["parent"]["step"] == 50 and not steps[51]["parent"]["present"]
    assert steps[41]["tags"] == ["best"] and "parent" not in steps[10]


def test_log_of_a_store_without_steps(tmp_path):
    with cairn.open(tmp_path / "store", mode="a"):
        pass
    assert run_program("kv-dump", "log", tmp_path / "store", status=0).out == "No steps yet.\n"


def test_a_step_that_replaced_a_parent_is_not_the_parent(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step in (1, 2, 1):
            store.save(step, {"n": step}, overwrite=True)
    assert graph(tmp_path / "store") == ["* 1", "* 2", "o 1 (not in the store)"]


def test_a_parent_that_was_edited_in_place_remains_the_parent(tmp_path):
    with cairn.open(tmp_path / "store", mode="a") as store:
        for step in (1, 2, 3):
            store.save(step, {"n": step})
        store.edit(2, into=2, overwrite=True, records={"eval": b"0.5"})
        assert store.latest() == 3
    assert graph(tmp_path / "store") == ["* 3", "* 2", "* 1"]


def blame(store, key, *words):
    return run_program("kv-dump", "blame", store, key, *words, "--json", status=0).json()


def test_blame_follows_the_parents_of_the_step(forks):
    def steps(address):
        return [change["step"] for change in blame(address, "w")["changes"]]

    assert steps(f"{forks}@41") == [10, 20, 31, 41]  # and not 30
    assert steps(f"{forks}@40") == [10, 20, 30, 40]
    assert steps(f"{forks}@52") == [52]
    text = run_program("kv-dump", "blame", f"{forks}@52", "w", status=0).out
    assert "1 step on the way, such as 50, is not in the store" in text


def test_a_pruned_run_remains_a_line(tmp_path):
    store = tmp_path / "store"
    with cairn.open(store, mode="a") as opened:
        for step in range(1, 7):
            opened.save(step, {"w": np.float32([step])})
        opened.delete(2, 4, 5)
    assert graph(store) == [
        "* 6", "o 5 (not in the store)", "* 3", "o 2 (not in the store)", "* 1"
    ]  # fmt: skip
    found = blame(store, "w", "--values")
    assert found["absent_parents"] == [2, 5]
    assert [(c["step"], c.get("since")) for c in found["changes"]] == [(1, None), (3, 1), (6, 3)]


def test_blame_states_by_how_much(forks):
    change = blame(f"{forks}@41", "w", "--values")["changes"][2]
    assert (change["step"], change["since"], change["change"]) == (31, 20, "changed")
    assert change["changed_bytes"] == change["total_bytes"] == 4000
    assert change["mean_shift"] == pytest.approx(0.31)
    assert change["differing_elements"] == 10
    assert change["largest_absolute_difference"] == 31
    text = run_program("kv-dump", "blame", f"{forks}@41", "w", "--values", status=0).out
    assert "1.0 % of elements, by up to 31" in text and "+0.31" in text
    values = run_program("kv-dump", "blame", f"{forks}@41", "step", status=0).out
    assert "20 -> 31" in values and "30 ->" not in values and "-> 30" not in values
    assert "kv-dump keys" in run_program("kv-dump", "blame", forks, "absent", status=2).err
