"""Mirrors of stores that DCP saves into, and loads from them."""

from __future__ import annotations

import shutil

import cairn
import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from cairn import Mirror
from cairn._mirror import store_mirrors
from cairn.dcp import CairnReader, CairnWriter
from cairn_testing import assert_same, run_python, state_of, steps_of, wait_until
from dtensors import sharded_state
from ranks import with_ranks
from storages import errors_of
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType


def assert_loads(step: int, reader: CairnReader) -> None:
    state = state_of(-1)
    dcp.load(state, storage_reader=reader)
    assert_same(state, state_of(step))


def is_mirrored(mirror) -> bool:
    try:
        return 2 in steps_of(mirror)
    except cairn.NotFound:
        return False


@pytest.fixture
def mirror(tmp_path):
    return tmp_path / "mirror"


@pytest.fixture(autouse=True)
def closed_mirrors():
    yield
    store_mirrors.close_all()


def test_saved_steps_are_copied_to_the_mirror_and_loaded_from_it(path, mirror):
    for step in range(1, 5):
        writer = CairnWriter(path, step=step, mirror=mirror, mirror_every=2)
        dcp.save(state_of(step), storage_writer=writer)
        writer.wait_mirrored(60)
    assert steps_of(path) == [1, 2, 3, 4]
    assert steps_of(mirror) == [2, 4]
    [status] = writer.mirror_status()
    assert (status.last_step, status.step, status.waiting, status.error) == (4, None, (), None)

    with cairn.open(path, mode="a", grace=0) as store:
        store.delete(2, 4)
    assert_loads(2, CairnReader(path, step=2, fallback=[mirror]))
    assert_loads(3, CairnReader(path, step=3, fallback=[mirror]))
    assert_loads(4, CairnReader(path, fallback=[mirror]))  # the latest of both
    assert_loads(3, CairnReader(path))
    shutil.rmtree(path)
    assert_loads(4, CairnReader(path, fallback=[path.with_name("absent"), mirror]))
    with pytest.raises(cairn.NotFound) as caught:
        CairnReader(path, 3, fallback=[mirror]).read_metadata()
    assert caught.value.step == 3


def test_bad_mirrors_are_refused_before_anything_is_saved(path, mirror, tmp_path):
    with pytest.raises(cairn.Invalid, match="mirror"):
        CairnWriter(path, step=1, mirror=path)
    with pytest.raises(cairn.Invalid, match="every"):
        CairnWriter(path, step=1, mirror=mirror, mirror_every=0)
    with pytest.raises(cairn.Invalid, match="without a step"):
        CairnReader(path, fallback=[f"{mirror}@1"])
    # The location may be known only later.
    writer = CairnWriter(mirror=path)
    errors = errors_of(dcp.save, state_of(1), checkpoint_id=path, storage_writer=writer)
    assert isinstance(errors[0], cairn.Invalid)
    assert not path.exists()

    first = CairnWriter(path, step=1, mirror=mirror)
    dcp.save(state_of(1), storage_writer=first)
    first.wait_mirrored(60)
    other = CairnWriter(tmp_path / "other", step=1, mirror=mirror)
    errors = errors_of(dcp.save, state_of(1), storage_writer=other)
    assert isinstance(errors[0], cairn.Invalid) and str(path) in str(errors[0])
    again = CairnWriter(path, step=2, mirror=Mirror(mirror, max_rate=1))
    errors = errors_of(dcp.save, state_of(2), storage_writer=again)
    assert isinstance(errors[0], cairn.Invalid) and "other options" in str(errors[0])
    assert steps_of(path) == [1]


SAVE = """
import os, sys
import torch
import torch.distributed.checkpoint as dcp
from cairn.dcp import CairnWriter
path, mirror, step, end = sys.argv[1:]
options = {"mirror": mirror} if mirror else {}
state = {"t": torch.full((1000,), float(step)), "step": int(step)}
if __name__ == "__main__":
    dcp.save(state, storage_writer=CairnWriter(path, step=int(step), **options))
    if end == "kill":
        os._exit(0)
"""


def test_an_error_of_the_mirror_does_not_affect_the_save(path, mirror):
    with cairn.open(mirror, mode="a") as other:
        other.save(1, {"other": 1})
    writer = CairnWriter(path, step=1, overwrite=False, mirror=mirror)
    with pytest.warns(RuntimeWarning, match="step 1 was not copied"):
        dcp.save(state_of(1), storage_writer=writer)
        with pytest.raises(cairn.Conflict):
            writer.wait_mirrored(60)
    assert_loads(1, CairnReader(path))
    assert isinstance(writer.mirror_status()[0].error, cairn.Conflict)


def test_a_step_that_waits_for_its_copy_is_not_pruned(path, mirror):
    other = cairn.open(mirror, mode="a")  # so that the copies wait
    with pytest.warns(RuntimeWarning, match="step 1 is not in the mirror"):
        for step in (1, 2):
            writer = CairnWriter(path, step=step, mirror=mirror)
            dcp.save(state_of(step), storage_writer=writer)
        with cairn.open(path, mode="a", grace=0) as store:
            store.save(3, state_of(3))
            store.prune(keep_last=1)
            assert store.steps() == [1, 2, 3]
            wait_until(lambda: writer.mirror_status()[0].error is not None)
            with pytest.raises(TimeoutError):
                writer.wait_mirrored(0.01)
            other.close()
            writer.wait_mirrored(60)
            store.prune(keep_last=1)
            assert store.steps() == [3]
    assert steps_of(mirror) == [1, 2]


def test_the_next_process_copies_what_the_last_one_has_not(path, mirror):
    run_python(SAVE, path, "", "1", "kill")
    run_python(SAVE, path, "", "2", "kill")
    run_python(SAVE, path, mirror, "3", "end", fresh=True)
    assert steps_of(mirror) == [1, 2, 3]


def test_many_stores_do_not_keep_their_mirrors_open(tmp_path):
    for i in range(8):
        writer = CairnWriter(tmp_path / f"store-{i}", mirror=tmp_path / f"mirror-{i}")
        dcp.save(state_of(i), storage_writer=writer)
        writer.wait_mirrored(60)
    # The first one is closed: another writer may open it.
    cairn.open(tmp_path / "mirror-0", mode="a").close()
    for i in range(8):
        assert_loads(i, CairnReader(tmp_path / f"mirror-{i}"))
    # The next save into the store opens it again.
    writer = CairnWriter(tmp_path / "store-0", mirror=tmp_path / "mirror-0")
    dcp.save(state_of(100), storage_writer=writer)
    writer.wait_mirrored(60)
    assert_loads(100, CairnReader(tmp_path / "mirror-0"))


# Ranks --------------------------------------------------------------------------------------------


def assert_rank_loads(step: int, reader: CairnReader) -> None:
    state = sharded_state(-1)
    dcp.load(state, storage_reader=reader)
    assert_same(state, sharded_state(step))


@with_ranks(2)
def test_two_ranks_save_with_a_mirror_and_load_from_it(rank: int, path, mirror) -> None:
    for step in (1, 2):
        writer = CairnWriter(path, step=step, mirror=mirror)
        dcp.save(sharded_state(step), storage_writer=writer)
    writer.wait_mirrored(60)
    dist.barrier()
    assert_rank_loads(2, CairnReader(path, fallback=[mirror]))
    dist.barrier()
    if rank == 0:
        with cairn.open(path, mode="a", alone=True, grace=0) as store:
            store.delete(2)
    dist.barrier()
    assert_rank_loads(2, CairnReader(path, fallback=[mirror]))
    dist.barrier()
    if rank == 0:
        shutil.rmtree(path)
    dist.barrier()
    assert_rank_loads(1, CairnReader(path, step=1, fallback=[mirror]))
    # Only the rank that commits copies.
    assert [one.last_step for one in writer.mirror_status()] == ([2] if rank == 0 else [])


@pytest.mark.parametrize("kind", list(AsyncCheckpointerType))
@with_ranks(2)
def test_async_saves_are_mirrored(rank: int, path, mirror, kind: AsyncCheckpointerType) -> None:
    for step in (1, 2):
        future = dcp.async_save(
            sharded_state(step),
            storage_writer=CairnWriter(path, step=step, mirror=mirror),
            async_checkpointer_type=kind,
        )
        future.result()
    if rank == 0:  # with a process, the copies run in the process that saves
        wait_until(lambda: is_mirrored(mirror))
    dist.barrier()
    assert_rank_loads(2, CairnReader(path.with_name("absent"), fallback=[mirror]))


@with_ranks(2)
def test_without_collectives_each_rank_has_its_own_mirror(rank: int, path, mirror) -> None:
    writer = CairnWriter(path, step=1, mirror=mirror)
    dcp.save(state_of(rank), storage_writer=writer, use_collectives=False)
    writer.wait_mirrored(60)
    shutil.rmtree(path / f"rank-{rank}")
    dist.barrier()
    state = state_of(-1)
    dcp.load(state, storage_reader=CairnReader(path, step=1, fallback=[mirror]))
    assert state["step"] == rank
    assert steps_of(mirror / f"rank-{rank}") == [1]
