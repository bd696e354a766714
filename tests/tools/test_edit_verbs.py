"""`kv-admin rename`, `drop`, `graft` and `fork`: the step is what a save of the edited state is."""

import pytest
import torch

import cairn
from tool_programs import run_program, small_model


def admin(*words):
    finished = run_program("kv-admin", *words)
    assert finished.status == 0, finished.err
    return finished


@pytest.fixture
def saved(tmp_path):
    """A store with steps 1 and 2, which have no bytes in common."""
    path = tmp_path / "store"
    model = small_model()
    with cairn.open(path, mode="a", grace=0) as store:
        store.save(1, {"model": model, "lr": 0.1})
        head = {"weight": torch.randn(700, 300), "scales": [1.5, torch.ones(3)]}
        store.save(2, {"model": {"head": head}, "lr": 0.2}, incremental=False)
    return path, model, head


def assert_step(path, step, expected):
    """Compares the step with a save of `expected`, after its sources have been deleted."""
    with cairn.open(path, mode="a", grace=0) as store:
        store.delete(*(other for other in store.steps() if other != step))
        store.save(1000, expected, incremental=False)
        assert str(store.read(step=step)) == str(expected)
    rows = run_program("kv-dump", "steps", path, "--json").json()["steps"]
    steps = {row["step"]: row for row in rows}
    assert steps[step]["written_bytes"] == 0
    diff = run_program("kv-dump", "diff", f"{path}@{step}", f"{path}@1000")
    assert diff.status == 0, diff.out
    verified = run_program("kv-dump", "verify", path)
    assert verified.status == 0, verified.out


def test_rename(saved):
    path, model, _ = saved
    out = admin("rename", f"{path}@1", "model=net", "lr=optimizer.lr", "--into", 3).out
    assert out.startswith("step 3: 7 tensors and 1 value") and "no payload written" in out
    assert_step(path, 3, {"net": model, "optimizer": {"lr": 0.1}})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rename", "@1", "model"), "OLD=NEW"),
        (("rename", "@1", "mode=x"), "mode"),
        (("drop", "@1", "nothing"), "nothing"),
        (("drop", "@2", "model.head.scales.0"), "model.head.scales.0"),
        (("graft", "@1", "--from", "9"), "9"),
        (("fork", "@9"), "9"),
    ],
)
def test_refuses(saved, words, message):
    path, _, _ = saved
    verb, step, *rest = words
    finished = run_program("kv-admin", verb, f"{path}{step}", *rest, "--into", 3)
    assert finished.status == 2
    assert message in finished.err
    with cairn.open(path) as store:
        assert store.steps() == [1, 2]


def test_an_existing_step_is_replaced_only_on_request(saved):
    path, model, _ = saved
    words = ("drop", f"{path}@1", "lr", "--into", 2)
    assert run_program("kv-admin", *words).status == 2
    admin(*words, "--overwrite")
    assert_step(path, 2, {"model": model})


def test_fork_to_another_store(saved, tmp_path):
    path, model, head = saved
    other = tmp_path / "other"
    out = admin("fork", f"{path}@1", "--to", other, "--into", 7).out
    assert out.startswith("step 7: copied ")
    admin("fork", path, "--to", other)
    assert "already there" in admin("fork", f"{path}@1", "--to", other, "--into", 7).out
    conflict = run_program("kv-admin", "fork", f"{path}@2", "--to", other, "--into", 7)
    assert conflict.status == 2 and "7" in conflict.err
    with cairn.open(other) as store:
        assert store.steps() == [2, 7]
        assert str(store.read(step=7)) == str({"model": model, "lr": 0.1})
        assert str(store.read(step=2)) == str({"model": {"head": head}, "lr": 0.2})
    assert run_program("kv-dump", "verify", other).status == 0
    assert "--to" in run_program("kv-admin", "fork", path).err
    assert run_program("kv-admin", "fork", f"{path}@9", "--to", tmp_path / "no").status == 2
    two = ("fork", f"{path}@1,2", "--to", tmp_path / "no", "--into", 7)
    assert run_program("kv-admin", *two).status == 2
    assert not (tmp_path / "no").exists()


def test_a_mistyped_store_is_not_created(tmp_path):
    assert run_program("kv-admin", "fork", tmp_path / "no", "--into", 1).status == 2
    assert not (tmp_path / "no").exists()
