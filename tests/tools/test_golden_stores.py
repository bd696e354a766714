"""Golden stores, which tests/golden/regenerate.sh creates, one for each feature: Cairn and the
reference reader find what their JSON states, and Cairn continues and rebuilds them."""

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

STORES = sorted(path.with_suffix("") for path in (ROOT / "tests" / "golden").glob("*.json"))


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


def test_both_readers_find_what_the_json_states(golden):
    expected = contents(golden)

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
    for step in expected.values():
        step["tags"] = []  # only roots have them
    assert found(path).items() >= expected.items()


def test_a_golden_store_is_small():
    for path in STORES:
        sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
        assert sum(sizes) < 100 << 10, path.name


def features_of(path):
    """What a reader must understand to read the store."""
    store = cairn_reader.Store(path)
    if len(store.root.pages or []) > 1:
        yield "pages"
    for number, entry in store.entries.items():
        step = store.step(number)
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
            if cairn_reader.parse(data, "ValueRecord").chunked_bytes:
                yield "long values"
        for key, _ in step.scan(cairn_reader.SEGMENTS):
            _, record = step.segment(int.from_bytes(key[1:], "big"))
            if record.step == 0:
                yield "compaction"


def parsed(step):
    return cairn_reader.parse(step.records[cairn_reader.STRUCTURES], "StructureRecord")


def test_each_feature_is_in_a_golden_store():
    expected = {"pages", "tables", "ranks", "escapes", "applications", "hidden", "alias", "deltas",
                "compressed", "extents", "statistics", "compaction", "int64", "bfloat16",
                "float8_e5m2", "complex128", "bool", "pages of 4096",
                "pages of 1048576", "long values"}  # fmt: skip

    assert expected <= {feature for path in STORES for feature in features_of(path)}
