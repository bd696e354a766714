"""`Saver.resume(on_damage="previous")`: which step is loaded, and what is reported."""

from __future__ import annotations

import pickle
import subprocess
import warnings
from pathlib import Path

import cairn_testing
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn_testing import assert_same
from process_suites import PROGRAMS
from ranks import run_on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn
from cairn.dcp import CairnReader, CairnWriter
from cairn.torch import ResumedStep, Saver


def state_of(step: int) -> dict:
    generator = torch.Generator().manual_seed(step)
    frozen = torch.arange(50_000.0)
    return {"t": torch.rand(50_000, generator=generator), "frozen": frozen, "step": step}


def damage(path: Path, step: int, at: float = 0.5) -> None:
    """Damages tensor "t", which differs in each step."""
    data = state_of(step)["t"].numpy().tobytes()
    offset = int(at * len(data)) // 64 * 64
    cairn_testing.damage(path, data[offset : offset + 64])


@pytest.fixture
def saved(path):
    """Steps 10, 20 and 30."""
    with cairn.open(path, mode="a") as store, Saver(store, every=10, async_=False) as saver:
        for step in (10, 20, 30):
            saver.step(step, state_of(step))
    return path


def test_a_damaged_step_is_an_error_by_default(saved):
    damage(saved, 30)
    with cairn.open(saved, mode="a") as store, Saver(store, every=10) as saver:
        with pytest.raises(cairn.Corrupt, match="key t") as raised:
            saver.resume(state_of(0))
        assert raised.value.step == 30


def test_the_newest_undamaged_step_is_loaded_and_the_others_are_reported(saved):
    damage(saved, 20)
    damage(saved, 30)
    with cairn.open(saved, mode="a") as store, Saver(store, every=10) as saver:
        state = state_of(0)
        with pytest.warns(RuntimeWarning, match="step [23]0 was skipped: .*key t") as warned:
            done = saver.resume(state, on_damage="previous")
        assert len(warned) == 2
        assert done == saver.last_step == 10
        assert list(done.skipped) == [30, 20]
        assert all(isinstance(error, cairn.Corrupt) for error in done.skipped.values())
        assert (done.skipped[30].key, done.skipped[30].step) == ("t", 30)
        assert_same(state, state_of(10))
        copy = pickle.loads(pickle.dumps(done))
        assert copy == 10 and list(copy.skipped) == [30, 20]


def test_an_undamaged_step_is_loaded_without_a_report(saved):
    with cairn.open(saved, mode="a") as store, Saver(store, every=10) as saver:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            done = saver.resume(state_of(0), on_damage="previous")
        assert isinstance(done, ResumedStep) and done == 30 and not done.skipped


def test_it_starts_at_the_step_that_is_given(saved):
    damage(saved, 20)
    with cairn.open(saved, mode="a") as store, Saver(store, every=10) as saver:
        with pytest.warns(RuntimeWarning, match="step 20 was skipped"):
            assert saver.resume(state_of(0), 20, on_damage="previous") == 10


def test_if_every_step_is_damaged_the_error_names_them(saved):
    for step in (10, 20, 30):
        damage(saved, step)
    with cairn.open(saved, mode="a") as store, Saver(store, every=10) as saver:
        with pytest.warns(RuntimeWarning), pytest.raises(cairn.Corrupt) as raised:
            saver.resume(state_of(0), on_damage="previous")
    assert raised.value.step == 30
    assert all(f"step {step}: " in str(raised.value) for step in (10, 20, 30))


def test_an_empty_store_has_nothing_to_resume(store):
    with Saver(store, every=10) as saver:
        assert saver.resume(state_of(0), on_damage="previous") is None


def test_a_state_that_does_not_fit_is_not_damage(saved):
    with cairn.open(saved, mode="a") as store, Saver(store, every=10) as saver:
        with pytest.raises(cairn.NotFound):
            saver.resume({"other": 1}, on_damage="previous")
        with pytest.raises(cairn.Invalid, match="strict"):
            saver.resume(state_of(0), on_damage="previous", strict=False)
        with pytest.raises(cairn.Invalid, match="on_damage='older'"):
            saver.resume(state_of(0), on_damage="older")


def test_damaged_records_are_damage(path):
    with cairn.open(path, mode="a") as store:
        store.save(20, state_of(20))
        older = set((path / "tables").iterdir())
        store.save(30, state_of(30))
    (newest_table,) = set((path / "tables").iterdir()) - older
    newest_table.write_bytes(b"\x55" * newest_table.stat().st_size)
    with cairn.open(path, mode="a") as store, Saver(store, every=10) as saver:
        with pytest.warns(RuntimeWarning, match="step 30 was skipped"):
            assert saver.resume(state_of(0), on_damage="previous") == 20


def test_the_training_replaces_a_skipped_step_without_references_to_it(saved):
    damage(saved, 30)
    with cairn.open(saved, mode="a") as store:
        with Saver(store, every=5, async_=False) as saver, pytest.warns(RuntimeWarning):
            assert saver.resume(state_of(0), on_damage="previous") == 20
            # The new step 30 has the bytes that the damaged one should have had.
            saver.step(25, state_of(25))
            saver.step(30, state_of(30))
            saver.step(35, state_of(35))
        assert store.steps() == [10, 20, 25, 30, 35]
        for step in store.steps():
            assert not store.damaged_keys(step)
            assert_same(store.read(step=step), state_of(step))


def test_other_existing_steps_remain_a_conflict(saved):
    damage(saved, 30)
    with cairn.open(saved, mode="a") as store, Saver(store, every=5, async_=False) as saver:
        with pytest.warns(RuntimeWarning):
            saver.resume(state_of(0), on_damage="previous")
        with pytest.raises(cairn.Conflict):
            saver.step(20, state_of(20))


def test_an_undamaged_copy_in_a_mirror_is_loaded_first(saved, tmp_path):
    mirror = tmp_path / "mirror"
    with cairn.open(saved, mode="a") as store:
        with Saver(store, every=10, mirror=str(mirror)) as saver:
            saver.save(40, state_of(40))
    damage(saved, 40)
    with cairn.open(saved, mode="a") as store:
        with Saver(store, every=10, mirror=str(mirror)) as saver:
            state = state_of(0)
            assert saver.resume(state, on_damage="previous") == 40
            assert_same(state, state_of(40))


def damage_frozen(path: Path) -> None:
    """Damages the tensor that all steps share."""
    cairn_testing.damage(path, state_of(0)["frozen"].numpy().tobytes()[6400:6464])


def test_after_a_copy_was_loaded_nothing_refers_to_the_damaged_one(saved, tmp_path):
    mirror = tmp_path / "mirror"
    for first in (True, False):
        with cairn.open(saved, mode="a") as store:
            with Saver(store, every=10, mirror=str(mirror), async_=False) as saver:
                saver.resume(state_of(0), on_damage="previous")
                saver.save(40 if first else 50, state_of(40))
                saver.save(41 if first else 51, state_of(40))
        if first:
            damage_frozen(saved)
    with cairn.open(saved) as store:
        assert all(store.damaged_keys(step) for step in (10, 20, 30, 40, 41))
        assert not store.damaged_keys(50) and not store.damaged_keys(51)
        assert store.step_info(50).parent.step == 41
        assert not store.diff(50, 51).changes


def test_a_new_run_after_damage_of_all_steps_refers_to_none(saved):
    damage_frozen(saved)
    with cairn.open(saved, mode="a") as store, Saver(store, every=10) as saver:
        with pytest.warns(RuntimeWarning), pytest.raises(cairn.Corrupt):
            saver.resume(state_of(0), on_damage="previous")
        saver.save(40, state_of(40))
        assert not store.damaged_keys(40)


def go_back(rank, path, way):
    state = state_of(0)
    if way in ("reader", "copy"):
        with cairn.open(path if way == "reader" else f"{path}-copy", timeout=600) as reader:
            reader.load(state, step=20)
    elif way == "dcp":
        dcp.load(state, storage_reader=CairnReader(path, step=20))
        for step in (30, 40):
            dcp.save(state_of(30), storage_writer=CairnWriter(path, step=step, overwrite=True))
        return
    with cairn.open(path, mode="a", timeout=600) as store:
        if way in ("load", "reader", "copy", "writer"):
            if way in ("load", "writer"):
                store.load(state, step=20)
            else:
                with pytest.raises(cairn.Conflict):
                    store.save(30, state_of(30))
            if way == "writer":
                with store.writer(30, overwrite=True) as writer:
                    writer.add_all(state_of(30).items() if rank == 0 else ())
            else:
                store.save(30, state_of(30), overwrite=True)
            store.save(40, state_of(30))
        else:
            with Saver(store, every=10, overwrite=True, async_=way == "async") as saver:
                assert saver.resume(state_of(0), step=20) == 20
                saver.step(30, state_of(30))
                saver.step(40, state_of(30))


@pytest.mark.parametrize("way", ["load", "reader", "copy", "writer", "dcp", "saver", "async"])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_run_that_goes_back_refers_to_no_damaged_step(saved, way, world_size):
    if way == "copy":
        words = [PROGRAMS / "kv-admin", "mirror", saved, f"{saved}-copy"]
        subprocess.run(words, check=True, timeout=1200)
    damage(saved, 30)
    run_on_ranks(go_back, saved, way, world_size=world_size)
    with cairn.open(saved) as store:
        assert not any(store.damaged_keys(step) for step in (10, 20, 30, 40))
        assert store.step_info(30).base_step == (None if way == "copy" else 20)
        assert store.step_info(40).base_step == 30


def test_a_store_without_steps_is_saved_to_after_a_load_from_its_fallback(saved, tmp_path):
    cairn.open(tmp_path / "new", mode="a").close()
    with cairn.open(tmp_path / "new", fallback=[saved]) as reader:
        assert reader.load(state_of(0)).step == 30
    with cairn.open(tmp_path / "new", mode="a") as store:
        store.save(40, state_of(40))
        assert_same(store.read(), state_of(40))


def sharded(step: int) -> dict:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = state_of(step)
    return {**state, "t": distribute_tensor(state["t"], mesh, [Shard(0)])}


def save_steps(rank, path):
    with cairn.open(path, mode="a", timeout=600) as store:
        with Saver(store, every=10, async_=False) as saver:
            for step in (10, 20, 30):
                saver.step(step, sharded(step))


def resume_previous(rank, path):
    with cairn.open(path, mode="a", timeout=600) as store, Saver(store, every=10) as saver:
        state = sharded(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                done = saver.resume(state, on_damage="previous")
            except cairn.Corrupt as error:
                return str(error)
        saver.step(30, sharded(30))
        whole = state["t"].full_tensor()
        texts = {step: str(error) for step, error in done.skipped.items()}
        return int(done), texts, len(caught), torch.equal(whole, state_of(int(done))["t"])


@pytest.mark.parametrize("at", [0.0, 0.4, 0.9])
def test_damage_in_the_part_of_one_rank_makes_all_ranks_load_the_older_step(path, at):
    run_on_ranks(save_steps, path, world_size=3)
    damage(path, 30, at)

    outcome = run_on_ranks(resume_previous, path, world_size=3)

    assert outcome[0][:1] == (20,) and list(outcome[0][1]) == [30] and outcome[0][3]
    assert outcome == [outcome[0]] * 3
    with cairn.open(path) as store:
        assert not store.damaged_keys(30)


def test_ranks_raise_the_same_error_if_nothing_is_left(path):
    run_on_ranks(save_steps, path, world_size=2)
    for step in (10, 20, 30):
        damage(path, step, 0.9)

    first, second = run_on_ranks(resume_previous, path, world_size=2)

    assert first == second and "step 10: " in first
