"""Reads a table as docs/format/sst.md states it, without RocksDB, and refuses everything else."""

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash
import zstandard

FOOTER_BYTES = 53
MAGIC = 0x88E241B785F4CFF7
VERSION = 5
XXH3 = 4  # the kind of checksum
TRAILER_BYTES = 5
CHECKSUM_PRIME = 0x6B9083D9
UNCOMPRESSED, ZSTD = 0, 7  # kinds of compression
SUFFIX = (1).to_bytes(8, "little")  # sequence number 0, type 1: a value
EVERY_16, EVERY_1, FIRST = 16, 1, 1 << 31  # entries from one restart point to the next

# Properties with only one value. Others are not checked.
FIXED = {
    "block.based.table.index.type": (2).to_bytes(4, "little"),
    "comparator": b"leveldb.BytewiseComparator",
    "deleted.keys": b"\0",
    "external_sst_file.global_seqno": bytes(8),
    "external_sst_file.version": (2).to_bytes(4, "little"),
    "filter.size": b"\0",
    "index.key.is.user.key": b"\1",
    "index.value.is.delta.encoded": b"\1",
    "merge.operands": b"\0",
    "num.range-deletions": b"\0",
}


class NotInTheSubset(Exception):
    """The bytes are not a table, or not one that Cairn writes."""


@dataclass
class Table:
    records: list[tuple[bytes, bytes]]  # keys begin with their column
    properties: dict[str, bytes]
    partitions: int


def check(condition: bool, what: str) -> None:
    if not condition:
        raise NotInTheSubset(what)


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, in its shortest form, and the position after it."""
    value = shift = 0
    while True:
        check(at < len(data) and shift < 64, "a varint has no end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            check((byte > 0 or shift == 7) and value < 1 << 64, "a varint has a longer form")
            return value, at


def handle(data: bytes, at: int = 0) -> tuple[tuple[int, int], int]:
    offset, at = varint(data, at)
    length, at = varint(data, at)
    return (offset, length), at


def block(content: bytes, place: tuple[int, int], may_compress: bool = False) -> bytes:
    """The block at a handle, decompressed."""
    offset, length = place
    stored, trailer = content[offset : offset + length], content[offset + length :][:TRAILER_BYTES]
    check(len(stored) == length and len(trailer) == TRAILER_BYTES, "a block ends after the table")
    kind = trailer[0]
    checksum = xxhash.xxh3_64_intdigest(stored) ^ kind * CHECKSUM_PRIME
    check(checksum & 0xFFFFFFFF == int.from_bytes(trailer[1:], "little"), "a block is damaged")
    if kind == UNCOMPRESSED:
        return stored
    check(kind == ZSTD and may_compress, f"a block has compression {kind}")
    length, at = varint(stored, 0)
    frame = stored[at:]
    stream = zstandard.ZstdDecompressor().decompressobj()
    try:
        check(zstandard.frame_content_size(frame) == length, "a frame has another length")
        out = stream.decompress(frame)
    except zstandard.ZstdError as error:
        raise NotInTheSubset(f"not a frame: {error}") from None
    check(len(out) == length and stream.eof and not stream.unused_data, "a frame has another end")
    return out


def entries(data: bytes, interval: int, has_length: bool = True) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a block. Without lengths, values are handles."""
    count = int.from_bytes(data[-4:], "little")
    end = len(data) - 4 - 4 * count
    check(len(data) >= 4 and count < 1 << 31 and end > 0, "a block has no restart points")
    restarts = [int.from_bytes(data[i : i + 4], "little") for i in range(end, len(data) - 4, 4)]
    key, at, number = b"", 0, 0
    found = []
    while at < end:
        if is_restart := number % interval == 0:
            found.append(at)
        shared, at = varint(data, at)
        added, at = varint(data, at)
        length, at = varint(data, at) if has_length else (None, at)
        check(shared <= len(key) and not (is_restart and shared), "an entry shares too much")
        key, at = key[:shared] + data[at : at + added], at + added
        begin = at
        at = begin + length if has_length else handle(data, begin)[1]
        check(at <= end, "an entry ends after its block")
        yield key, data[begin:at]
        number += 1
    check(found == restarts, "restart points are at other entries")


def read_table(content: bytes) -> Table:
    """The records of a table, in which every byte is accounted for."""
    footer = content[-FOOTER_BYTES:]
    check(len(footer) == FOOTER_BYTES, "too short")
    check(int.from_bytes(footer[45:], "little") == MAGIC, "another magic")
    check(int.from_bytes(footer[41:45], "little") == VERSION, "another version")
    check(footer[0] == XXH3, "another checksum")
    metaindex_place, at = handle(footer, 1)
    index_place, at = handle(footer, at)
    check(not any(footer[at:41]), "the footer is not padded with zeros")

    metaindex = list(entries(block(content, metaindex_place), EVERY_1))
    check([name for name, _ in metaindex] == [b"rocksdb.properties"], "other blocks")
    properties_place, at = handle(metaindex[0][1])
    check(at == len(metaindex[0][1]), "a handle has another length")
    properties = {
        key.decode().removeprefix("rocksdb."): value
        for key, value in entries(block(content, properties_place), FIRST)
    }
    for name, value in FIXED.items():
        check(properties.get(name) == value, f"another {name}: {properties.get(name)}")

    # Blocks follow each other without gaps, in this order.
    expected = 0

    def at_next(place: tuple[int, int]) -> tuple[int, int]:
        nonlocal expected
        check(place[0] == expected, "a gap between blocks")
        expected = sum(place) + TRAILER_BYTES
        return place

    top = [
        (key, handle(value)[0])
        for key, value in entries(block(content, index_place), EVERY_1, has_length=False)
    ]
    leaves = []
    for last_of_partition, place in top:
        partition = [
            (key, handle(value)[0])
            for key, value in entries(block(content, place), EVERY_1, has_length=False)
        ]
        check(partition[-1][0] == last_of_partition, "a partition has another last key")
        leaves += partition
    records: list[tuple[bytes, bytes]] = []
    separator = b""
    for last_of_block, place in leaves:
        found = list(entries(block(content, at_next(place), may_compress=True), EVERY_16))
        check(all(key.endswith(SUFFIX) for key, _ in found), "a key has another suffix")
        found = [(key[:-8], value) for key, value in found]
        keys = [key for key, _ in found]
        check(records == [] or separator < keys[0], "a block has a key of the one before it")
        check(all(a < b for a, b in zip(keys, keys[1:])), "keys do not ascend")
        check(keys[-1] <= last_of_block, "a block has another last key")
        records, separator = records + found, last_of_block
    for place in (*(place for _, place in top), index_place, properties_place, metaindex_place):
        at_next(place)
    check(expected == len(content) - FOOTER_BYTES, "a gap before the footer")
    check(number(properties, "num.entries") == len(records), "another number of records")
    return Table(records, properties, len(top))


def number(properties: dict[str, bytes], name: str) -> int:
    """A property that is a varint."""
    value, at = varint(properties.get(name, b""), 0)
    check(at == len(properties[name]), f"another {name}")
    return value
