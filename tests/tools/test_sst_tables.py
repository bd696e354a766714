"""What RocksDB writes is inside the subset of docs/format/sst.md, which the reference reader
follows byte by byte."""

import pathlib
import sys

import pytest
import torch

import cairn

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools" / "reference_reader"))
import cairn_read  # noqa: E402

GOLDEN = ROOT / "tests" / "golden"
TENSORS, CHUNKS, VALUES = 1, 2, 3


def read_table(path):
    with cairn_read.within(str(path)):
        return cairn_read.read_table(path.read_bytes())


def test_tables_of_golden_stores():
    paths = sorted(GOLDEN.glob("*/tables/*.sst"))
    assert len(paths) > 10

    for path in paths:
        assert read_table(path)[0][0] == b"\0", path  # the summary of the step


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A step whose only table has many blocks and index partitions, because its keys are long."""
    state = {
        "n" * 2_000: {f"{i:05}": i for i in range(5_000)},
        "blocks": {str(i): torch.full((4, 2), i) for i in range(300)},
        "large": {str(i): "x" * 4_000 for i in range(20)},
    }
    path = tmp_path_factory.mktemp("tables") / "store"
    with cairn.open(path, "a") as opened:
        opened.save(1, state)
    return path


def values(table, column):
    """The values of a column, by the key in it."""
    return {key[1:]: value for key, value in table if key[0] == column}


def test_a_table_of_many_records_is_what_kv_dump_shows(store, dump, monkeypatch):
    [path] = (store / "tables").iterdir()
    kinds, read_block = [], cairn_read.read_block
    monkeypatch.setattr(cairn_read, "read_block", lambda data, place, kind: (
        kinds.append(kind), read_block(data, place, kind))[1])  # fmt: skip

    table = read_table(path)

    assert kinds.count("index") > 6  # the top, and the partitions
    keys = dump("keys", store, "--json", status=0).json()["keys"]
    for kind, column in (("tensor", TENSORS), ("value", VALUES)):
        shown = {row["fqn"].encode() + b"\0" for row in keys if row["kind"] == kind}
        assert shown == values(table, column).keys(), kind
    chunks = values(table, CHUNKS)
    shown = dump("chunks", store, "--json", status=0).json()["chunks"]
    assert len(shown) == len(chunks)
    for row in shown:
        key = row["fqn"].encode() + b"\0"
        key += b"".join(offset.to_bytes(8, "big") for offset in row["offsets"])
        assert bytes.fromhex(row["digest"])[::-1] in chunks[key]  # the low half first


def test_a_flipped_bit_is_found(tmp_path):
    content = next(GOLDEN.glob("*/tables/*.sst")).read_bytes()
    path = tmp_path / "table"

    for i in range(len(content)):
        damaged = bytearray(content)
        damaged[i] ^= 1 << i % 8
        path.write_bytes(damaged)
        with pytest.raises(cairn_read.FormatError):
            read_table(path)
