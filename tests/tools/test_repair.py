"""kv-admin repair: damaged bytes are replaced from a mirror, and what has no copy is named."""

import shutil

import cairn
import numpy as np
import pytest

from cairn_testing import flip_byte
from tool_programs import assert_equal


@pytest.fixture
def mirrored(two_steps, admin, tmp_path):
    """A store and a complete mirror of it."""
    shutil.copytree(two_steps, tmp_path / "store")
    admin("push", f"{tmp_path / 'store'}@{{100,200}}", tmp_path / "mirror", status=0)
    return tmp_path / "store", tmp_path / "mirror"


def test_a_mirror_repairs_flips_and_missing_segments(mirrored, dump, admin, two_steps):
    store, mirror = mirrored
    first, *others = sorted((store / "segments").iterdir())
    flip_byte(first, 4100)
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
    with cairn.open(two_steps) as whole, cairn.open(store) as opened:
        for step in (100, 200):
            assert_equal(opened.read(step=step, flat=True), whole.read(step=step, flat=True))
    assert "no damage" in admin("repair", store, "--from", mirror, status=0).out


def test_versions_with_deltas_share_one_repaired_base(dump, admin, tmp_path):
    store, mirror = tmp_path / "store", tmp_path / "mirror"
    weights = np.random.default_rng(0).integers(0, 2**16, 1 << 20).astype(np.uint16)
    tuning = cairn.SaveTuning(deltas=16)
    with cairn.open(store, mode="a") as writer:
        for step in range(1, 9):
            writer.save(step, {"w": weights}, tuning=tuning)
            weights[step :: 4096] += 1
    admin("push", f"{store}@1", mirror, status=0)
    damage_largest_segment(store)
    planned = admin("repair", store, "--from", mirror, "--dry-run", status=0).out
    assert "would write 2.00 MiB" in planned
    report = admin("repair", store, "--from", mirror, "--json", status=0).json()
    assert report["repaired_chunks"] == report["damaged_chunks"] == 8
    assert report["written_bytes"] == weights.nbytes
    assert dump("verify", store).status == 0


def damage_largest_segment(store):
    flip_byte(max((store / "segments").iterdir(), key=lambda path: path.stat().st_size), 4100)


def test_mistakes(mirrored, admin, tmp_path):
    store, _ = mirrored
    assert "without a step" in admin("repair", f"{store}@100").err
    assert "nothing" in admin("repair", store, "--from", tmp_path / "nothing", status=2).err


def test_a_slow_verification_finds_the_same(mirrored, dump):
    store, _ = mirrored
    assert dump("verify", store, "--max-rate", "100M").status == 0
    damage_largest_segment(store)
    rates = ["--max-rate", "1G"], []
    slow, fast = (dump("verify", store, "--json", *rate, status=1) for rate in rates)
    assert slow.json()["damage"] == fast.json()["damage"]
    for wrong in ("0", "fast"):
        assert dump("verify", store, "--max-rate", wrong).status == 2
    assert dump("verify", f"{store}@100", "--max-rate", "1M").status == 2
