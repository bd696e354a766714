"""`kv-admin merge`: how steps are named, what it prints, and its errors."""

import pytest
import torch

import cairn
from tool_programs import run_program, steps_of


@pytest.fixture
def path(tmp_path):
    """A store with the steps 100, 200 and 300; the tag "best" names step 200."""
    with cairn.open(tmp_path / "store", mode="a", grace=0) as store:
        for step in (100, 200, 300):
            store.save(step, {"w": torch.full((3,), step / 100), "note": step})
        store.tag(200, "best")
    return tmp_path / "store"


def merged(path, into, *words):
    finished = run_program("kv-admin", "merge", *words, "--into", into, status=0)
    with cairn.open(path) as store:
        state = store.read(step=into)
    run_program("kv-dump", "verify", path, status=0)
    return state["w"][0].item(), state["note"], finished.out


def test_several_addresses(path):
    value, note, out = merged(path, 301, f"{path}@100", f"{path}@200", f"{path}@300")
    assert (value, note) == (2, 300)
    assert out.startswith("step 301: means of 3 steps, 1 tensor and 1 value with 12 B; wrote")


@pytest.mark.parametrize(
    ("steps", "value", "note"),
    [
        ("{100,200}", 1.5, 200),
        ("100,200", 1.5, 200),
        ("{100..300..100}", 2, 300),
        ("{300..100..100}", 2, 100),
        ("{300..100..200}", 2, 100),
        ("{best,300}", 2.5, 300),
        ("{300,best}", 2.5, 200),
        ("{100..200..100,300}", 2, 300),
    ],
)
def test_braces_that_the_shell_did_not_expand(path, steps, value, note):
    assert merged(path, 1, f"{path}@{steps}")[:2] == (value, note)


def test_weights_and_overwrite(path):
    assert merged(path, 1, f"{path}@{{100,200}}", "--weights", "1,3")[0] == 1.75
    assert merged(path, 1, f"{path}@{{100,200}}", "--weights=-1,2", "--overwrite")[0] == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{p}@100", "{p}2@200"], "several stores"),
        (["{p}@{{100..300}}"], "101"),
        (["{p}@{{100..300..0}}"], "range"),
        (["{p}@{{100..}}"], "range"),
        (["{p}@{{0..1000000000000}}"], "more than 100000 steps"),
        (["{p}@{{100,none}}"], "none"),
        (["{p}@{{100,200}}", "--weights", "1,x"], "--weights"),
        (["{p}@{{100,200}}", "--weights", "1,"], "--weights"),
        (["{p}@{{100,200}}", "--weights", "0,0"], "sum"),
    ],
)
def test_errors(path, words, message):
    words = [word.format(p=path) for word in words]
    assert message in run_program("kv-admin", "merge", *words, "--into", 1, status=2).err
    assert steps_of(path) == [100, 200, 300]
