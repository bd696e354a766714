"""Golden stores, one for each feature, of which no file ever changes: tests/golden/README.md. Cairn
and the reference reader find what their JSON states, and Cairn continues and rebuilds them."""

import hashlib
import json
import pathlib
import shutil
import sys

import pytest
import torch

import cairn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "golden"), str(ROOT / "tools" / "reference_reader")]
import cairn_reader  # noqa: E402
from contents import found_by_cairn, found_by_reader  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
STORES = sorted(path.with_suffix("") for path in GOLDEN.glob("*.json"))


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def golden(request):
    return request.param


def contents(path):
    content = json.loads(path.with_suffix(".json").read_text())
    return {int(step): content[step] for step in content}


def found(path):
    """What Cairn reads of each step, which it also verifies."""
    with cairn.open(path, "r") as store:
        assert not store.damaged_keys()
        return {step: found_by_cairn(store, step) for step in store.steps()}


def test_no_file_ever_changes():
    lines = (GOLDEN / "SHA256SUMS").read_text().splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = [path for path in GOLDEN.glob("v*") for path in (path, *path.rglob("*"))]

    assert recorded == {
        path.relative_to(GOLDEN).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file()
    }


def test_both_readers_find_what_the_json_states(golden):
    expected = contents(golden)

    if golden.name != "v3-bcomplex32" or hasattr(torch, "bcomplex32"):
        assert found(golden) == expected

    store = cairn_reader.Store(golden)
    assert [str(error) for error in store.verify()] == []
    assert {step: found_by_reader(store, step) for step in store.entries} == expected


def test_a_step_is_added_and_the_steps_are_recovered_without_roots(golden, tmp_path, admin, dump):
    path = tmp_path / "store"
    shutil.copytree(golden, path)
    expected = contents(golden)
    with cairn.open(path, "a", grace=0) as store:
        store.save(1000, {"w": torch.ones(3)})
    shutil.rmtree(path / "roots")

    admin("rebuild", path, status=0)

    dump("verify", path, status=0)
    reader = cairn_reader.Store(path)
    for step, content in expected.items():
        content["tags"] = []  # only roots have them
        assert found_by_reader(reader, step) == content


def test_the_policy_of_a_store_is_read():
    with cairn.open(GOLDEN / "v3-descent", "r") as store:
        policy = store.policy()

    assert (policy.keep_last, policy.keep_every) == (100, 10)
    assert policy.keep_best == ("loss:2",)


def test_golden_stores_are_small():
    sizes = {
        path: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for path in GOLDEN.glob("v*")
    }

    assert max(sizes[path] for path in STORES) < 100 << 10
    assert sum(sizes.values()) < 1_000_000


def features_of(path):
    """What a reader must understand to read the store."""
    store = cairn_reader.Store(path)
    if len(store.root.pages or []) > 1:
        yield "pages"
    for number, entry in store.entries.items():
        step = store.step(number)
        if not entry.summary.run:
            yield "no run"
        if entry.summary.parent and entry.summary.parent.step not in store.entries:
            yield "absent parent"
        if len(entry.tables) > 1:
            yield "tables"
        if entry.summary.world_size > 1:
            yield "ranks"
        if b"\1" in (parsed(step).forms or b""):
            yield "escapes"
        if step.applications():
            yield "applications"
        for key, _ in step.scan(cairn_reader.TENSORS):
            record = step.tensor_record(key[1:-1].decode(*cairn_reader.UTF8))
            yield "hidden" if record.hidden else "alias" if record.alias_of else record.dtype_name
            for _, chunk in step.chunks(record):
                if chunk.deltas:
                    yield "deltas" if chunk.extents else "compressed"
                if len(chunk.extents) > 1:
                    yield "extents"
                if chunk.page != cairn_reader.PAGE:
                    yield f"pages of {chunk.page}"
                if chunk.statistics:
                    yield "statistics"
        for _, data in step.scan(cairn_reader.VALUES):
            record = cairn_reader.parse(data, "ValueRecord")
            yield f"values of kind {record.kind}"
            if record.chunked_bytes:
                yield "long values"
        for key, _ in step.scan(cairn_reader.SEGMENTS):
            _, record = step.segment(int.from_bytes(key[1:], "big"))
            if record.step == 0:
                yield "compaction"


def parsed(step):
    return cairn_reader.parse(step.records[cairn_reader.STRUCTURES], "StructureRecord")


def test_each_feature_is_in_a_golden_store():
    expected = {"pages", "tables", "ranks", "escapes", "applications", "hidden", "alias", "deltas",
                "compressed", "extents", "statistics", "compaction", "pages of 4096",
                "pages of 1048576", "long values", "no run", "absent parent",
                *(f"values of kind {kind}" for kind in range(9)),
                *(name for name, _ in cairn_reader.DTYPES[1:])}  # fmt: skip

    assert expected - {feature for path in STORES for feature in features_of(path)} == set()
