"""Records of applications: bytes that a step has under names, in addition to its state."""

import pytest

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


@pytest.mark.parametrize("name", ["", "a" * 256, "a\0b", "\ud800"])
def test_a_name_that_is_not_valid_is_refused(tmp_path, name):
    with pytest.raises(cairn.errors.Invalid):
        saved(tmp_path, 1, {name: b""})


def test_a_record_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(cairn.errors.Invalid, match="16777217 bytes"):
        saved(tmp_path, 1, {"a": bytes((16 << 20) + 1)})
