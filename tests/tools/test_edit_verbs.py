"""`kv-admin rename`, `drop`, `graft` and `fork`: what they print and refuse. tests/matrix/ compares
the steps that they create."""

import pytest
import torch
from cairn_testing import assert_same

import cairn
from tool_programs import small_model, steps_of


@pytest.fixture
def saved(tmp_path):
    """A store with steps 1 and 2, which have no bytes in common."""
    path = tmp_path / "store"
    model = small_model()
    with cairn.open(path, mode="a", grace=0) as store:
        store.save(1, {"model": model, "lr": 0.1})
        head = {"weight": torch.randn(700, 300), "scales": [1.5, torch.ones(3)]}
        whole = cairn.SaveTuning(incremental=False)
        store.save(2, {"model": {"head": head}, "lr": 0.2}, tuning=whole)
    return path, model, head


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
def test_refuses(saved, admin, words, message):
    path, _, _ = saved
    verb, step, *rest = words
    assert message in admin(verb, f"{path}{step}", *rest, "--into", 3, status=2).err
    assert steps_of(path) == [1, 2]


def test_an_edit_reports_what_the_step_has(saved, admin):
    path, model, _ = saved
    words = ("rename", f"{path}@1", "model=net", "lr=optimizer.lr", "--into", 2)
    admin(*words, status=2)
    out = admin(*words, "--overwrite", status=0).out
    assert out.startswith("step 2: 7 tensors and 1 value") and "no payload written" in out
    with cairn.open(path) as store:
        assert_same(store.read(step=2), {"net": model, "optimizer": {"lr": 0.1}})
