"""kv-admin repair: damaged bytes are replaced from a mirror, and what has no copy is named."""

import shutil

import cairn
import pytest
import torch

from test_damage import flip


@pytest.fixture
def mirrored(two_steps, admin, tmp_path):
    """A store and a complete mirror of it."""
    shutil.copytree(two_steps, tmp_path / "store")
    admin("push", f"{tmp_path / 'store'}@{{100,200}}", tmp_path / "mirror", status=0)
    return tmp_path / "store", tmp_path / "mirror"


def bytes_of_all(path):
    with cairn.open(path) as store:
        return {step: store.read(step=step, flat=True) for step in (100, 200)}


def test_a_mirror_repairs_flips_and_missing_segments(mirrored, dump, admin, two_steps):
    store, mirror = mirrored
    first, *others = sorted((store / "segments").iterdir())
    flip(first, 4100, 3)
    for segment in others:
        segment.unlink()
    assert dump("verify", store).status == 1
    assert "would write" in admin("repair", store, "--from", mirror, "--dry-run", status=0).out
    assert dump("verify", store).status == 1
    repaired = admin("repair", store, "--from", mirror, "--json", status=0)
    report = repaired.json()
    assert report["repaired_chunks"] == report["damaged_chunks"] > 0
    assert report["remaining"] == []
    assert dump("verify", store).status == 0
    want, got = bytes_of_all(two_steps), bytes_of_all(store)
    for step in want:
        assert want[step].keys() == got[step].keys()
        assert all(torch.equal(want[step][key], got[step][key]) for key in want[step])
    assert "no damage" in admin("repair", store, "--from", mirror, status=0).out


def test_what_has_no_copy_is_named(mirrored, admin, dump):
    store, _ = mirrored
    flip(max((store / "segments").iterdir(), key=lambda path: path.stat().st_size), 4100, 3)
    left = admin("repair", store)
    assert left.status == 1 and "remains: " in left.out and "(key " in left.out
    assert dump("verify", store).status == 1


def test_mistakes(mirrored, admin, tmp_path):
    store, _ = mirrored
    assert "without a step" in admin("repair", f"{store}@100").err
    assert "nothing" in admin("repair", store, "--from", tmp_path / "nothing", status=2).err


def test_a_slow_verification_finds_the_same(mirrored, dump):
    store, _ = mirrored
    assert dump("verify", store, "--max-rate", "100M").status == 0
    flip(max((store / "segments").iterdir(), key=lambda path: path.stat().st_size), 4100, 3)
    slow, fast = (dump("verify", store, "--json", *rate) for rate in (["--max-rate", "1G"], []))
    assert slow.status == fast.status == 1
    assert slow.json()["damage"] == fast.json()["damage"]
    for wrong in ("0", "fast"):
        assert dump("verify", store, "--max-rate", wrong).status == 2
    assert dump("verify", f"{store}@100", "--max-rate", "1M").status == 2
