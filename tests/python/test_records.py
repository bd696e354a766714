"""Records of applications: bytes that a step has under names, in addition to its state."""

import pytest
import torch
from ranks import with_ranks

import cairn
from cairn import SaveTuning

RECORDS = {"config": b"lr: 1e-5", "empty": b"", "größe": bytes(range(256)) * 4096}


def saved(path, step, records):
    with cairn.open(path, "a") as store:
        store.save(step, {"a": 1}, tuning=SaveTuning(records=records))


def found(path, step):
    with cairn.open(path) as store:
        return {name: store.record(step, name) for name in store.records(step)}


def test_a_step_has_the_records_of_its_save(tmp_path):
    with cairn.open(tmp_path, "a") as store:
        for step, records in enumerate((None, RECORDS, {"config": b"2"}, None, None)):
            store.save(step, {"a": 1}, tuning=SaveTuning(records=records))
    for step, records in enumerate(({}, RECORDS, {"config": b"2"}, {}, {})):
        assert found(tmp_path, step) == records
        assert list(found(tmp_path, step)) == sorted(records)


def test_an_edit_changes_records_and_keeps_the_others(tmp_path):
    saved(tmp_path, 1, RECORDS)
    saved(tmp_path, 2, {"other": b"x"})
    changes = {"config": b"new", "empty": None, "added": b"y"}
    expected = RECORDS | {"config": b"new", "added": b"y"}
    del expected["empty"]

    with cairn.open(tmp_path, "a") as store:
        store.edit(1, into=3)
        store.edit(1, into=4, rename={"a": "b"}, graft_from=2, graft="a", under="c")
        store.edit(1, into=1, overwrite=True, records=changes)
        with pytest.raises(cairn.errors.NotFound, match="no record 'absent'"):
            store.edit(1, into=5, records={"absent": None})

    assert found(tmp_path, 3) == found(tmp_path, 4) == RECORDS
    assert found(tmp_path, 1) == expected


@with_ranks(2)
def test_the_records_of_several_ranks_come_from_rank_0(rank, tmp_path):
    only_rank_0 = SaveTuning(records=RECORDS if rank == 0 else None)
    on_both = SaveTuning(records={"rank": bytes([rank])})
    with cairn.open(tmp_path, "a") as store:
        store.save(1, {"a": torch.ones(3)}, tuning=only_rank_0)
        store.save(2, {"a": torch.ones(3)}, tuning=on_both)
        with store.writer(3, tuning=only_rank_0) as writer:
            writer.add(f"a{rank}", torch.ones(3))
    assert found(tmp_path, 1) == found(tmp_path, 3) == RECORDS
    assert found(tmp_path, 2) == {"rank": b"\0"}


def test_copies_merges_and_compactions_keep_records(tmp_path):
    store_path, copy = tmp_path / "store", tmp_path / "copy"
    saved(store_path, 1, {"first": b"1"})
    saved(store_path, 2, RECORDS)
    with cairn.open(store_path, "a") as store:
        store.merge([1, 2], into=3)
        store.fork(2, to=copy)
        store.compact(max_dead=0.0, compress=True)
    assert found(store_path, 3) == found(store_path, 2) == found(copy, 2) == RECORDS
    assert found(store_path, 1) == {"first": b"1"}


@pytest.mark.parametrize("name", ["", "a" * 256, "a\0b", "\ud800", 1])
def test_a_name_that_is_not_valid_is_refused(tmp_path, name):
    with pytest.raises(cairn.errors.Invalid, match="name"):
        saved(tmp_path, 1, {name: b""})


@pytest.mark.parametrize("data", [3, None, "text", [1, 2]])
def test_only_bytes_can_be_stored(tmp_path, data):
    with pytest.raises(cairn.errors.Invalid, match="'a' must be bytes"):
        saved(tmp_path, 1, {"a": data})
    saved(tmp_path, 1, {"a": memoryview(b"12"), "b": bytearray(b"3")})
    assert found(tmp_path, 1) == {"a": b"12", "b": b"3"}
