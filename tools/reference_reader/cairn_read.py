#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads and verifies stores of Cairn without Cairn: the executable specification of its format.

This file was written from the pages in docs/format/ and the schemas in schema/ alone, and each part
names its page. It reads a store in a directory, on any operating system and byte order, needs only
numpy, xxhash and zstandard, and is slow where that makes it shorter.

    python cairn_read.py STORE                           the steps
    python cairn_read.py STORE@STEP                      the keys (STEP: a number, a tag or latest)
    python cairn_read.py STORE@STEP --key K --slice 0:2,3:
    python cairn_read.py STORE --verify                  every byte; exit status 1 if damaged

A store is treated as hostile input. Whatever does not follow the pages raises FormatError; a length
is compared with the bytes that exist before memory is allocated; nothing recurses without a limit;
and a pickle is returned as bytes and never executed.

From top to bottom: errors and numbers; files and zstd; FlatBuffers; tables (SST); roots and pages;
deltas and chunks; steps, tensors and values; verification; the command line.
"""

import argparse
import bisect
import collections
import functools
import heapq
import json
import math
import os
import re
import struct
import sys
from types import SimpleNamespace

import numpy
import xxhash
import zstandard

PAGE = 65536  # bytes of a payload that have one digest
MAX_RECORD = 64 << 20  # bytes of the record of a root or a page
MAX_WITH_DELTAS = 1 << 30  # bytes of a chunk with deltas, and of its deltas
MAX_DELTAS, MAX_TABLES, MAX_LEVELS, MAX_FQN = 64, 8, 1000, 65536  # limits.md
FORMAT, KNOWN_FEATURES = 3, frozenset()


class FormatError(Exception):
    """The store is damaged, or is not one that the pages describe."""

    def __init__(self, where, offset, what):
        self.where, self.offset, self.what = where, offset, what
        super().__init__(f"{where}{'' if offset is None else f', byte {offset}'}: {what}")


def check(condition, where, offset, what):
    if not condition:
        raise FormatError(where, offset, what)


# ---- Numbers and digests (digest.md) ------------------------------------------------------------

digest64 = xxhash.xxh3_64_intdigest


def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")


def u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")


def varint(data, at, where):
    """A LEB128 number of 64 bits in its shortest form, and the position after it."""
    value = shift = 0
    while True:
        check(at < len(data) and shift < 64, where, at, "a varint does not end")
        byte = data[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            check((byte or shift == 7) and value < 1 << 64, where, at, "a varint has a longer form")
            return value, at


def page_digests(payload):
    view = memoryview(payload)
    return b"".join(
        digest64(view[at : at + PAGE]).to_bytes(8, "little") for at in range(0, len(view), PAGE)
    )


def tree_digest(payload):
    """The page-tree digest of a payload: XXH3-128 of the digests of its pages and its length."""
    data = page_digests(payload) + len(payload).to_bytes(8, "little")
    return xxhash.xxh3_128_intdigest(data)


def digest_of(record):
    """A Digest of a schema as one number."""
    return None if record is None else record.hi << 64 | record.lo


# ---- Files and zstd frames ----------------------------------------------------------------------


class File:
    """An object of the store. Only ranges that exist are read."""

    def __init__(self, directory, name):
        self.name, self.path = name, os.path.join(directory, *name.split("/"))
        try:
            self.size = os.stat(self.path).st_size
        except OSError as error:
            raise FormatError(name, None, f"cannot be read: {error.strerror}") from None

    def read(self, at, length):
        check(
            0 <= at and 0 <= length <= self.size - at,
            self.name,
            at,
            f"{length} bytes from here end after the file, which has {self.size}",
        )
        with open(self.path, "rb") as file:
            file.seek(at)
            data = file.read(length)
        check(len(data) == length, self.name, at, f"only {len(data)} of {length} bytes can be read")
        return data

    def digest(self):
        state = xxhash.xxh3_64()
        for at in range(0, self.size, 1 << 20):
            state.update(self.read(at, min(1 << 20, self.size - at)))
        return state.intdigest()


def decompress(data, length, where, at, states_length=True):
    """The contents of `data`, which must be one zstd frame of `length` bytes."""
    check(
        length <= len(data) // 4 * (128 << 10) + (128 << 10), where, at, "the length is impossible"
    )
    try:
        stated = zstandard.frame_content_size(data)
        check(
            stated == length or stated < 0 and not states_length,
            where,
            at,
            f"the frame has {stated} bytes instead of {length}",
        )
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        found = decompressor.decompress(data, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(where, at, f"not a zstd frame: {error}") from None
    check(len(found) == length, where, at, "the frame has another length")
    return found


def read_frame(file, magic):
    """The record of a root or page (root.md, Frame)."""
    check(24 <= file.size <= 2 * MAX_RECORD, file.name, None, f"has {file.size} bytes")
    data = file.read(0, file.size)
    check(
        digest64(data[:-8]) == u64(data, len(data) - 8), file.name, len(data) - 8, "wrong checksum"
    )
    check(data[:4] == magic, file.name, 0, f"the magic is {data[:4]}")
    check(u32(data, 4) == 1, file.name, 4, f"version {u32(data, 4)} is unknown")
    check(u32(data, 8) <= MAX_RECORD, file.name, 8, "the record is too long")
    check(u32(data, 12) == len(data) - 24, file.name, 12, "the frame has another length")
    return decompress(data[16:-8], u32(data, 8), file.name, 16)


# ---- FlatBuffers (schema/*.fbs) -----------------------------------------------------------------

# The schemas, with the fields in the order of their ids. "=" gives a default other than 0; "?" is a
# number that may be absent; "[T]" is a vector. Numbers are aligned to their size.
SCHEMA = """
struct Digest lo:u64 hi:u64
struct Extent segment_id:u64 offset_bytes:u64 length_bytes:u64 page_digests_offset_bytes:u64
struct ChunkStatistics min:f64 max:f64 mean:f64 zeros:u64 nans:u64 infs:u64
struct ObjectId epoch:u32 id:u64
struct SegmentUse epoch:u32 id:u64 live_bytes:u64
table Metric name:str bits:u64
table ChunkRecord version:u8=1 encoding:u8 sizes:[u64] extent:Extent digest:Digest since_step:u64
  extents:[Extent] deltas:[Extent] statistics:ChunkStatistics
table TensorRecord version:u8=1 dtype:u8 shape:[u64] nbytes:u64 chunk_count:u64 alias_of:str
  alias_offset_bytes:u64 alias_strides:[u64] hidden:u8
table ValueRecord version:u8=1 kind:u8 integer:i64 bytes:[u8]
table Extension name:str data:[u8]
table StructureRecord version:u8=1 kinds:[u8] key_kinds:[u8] keys:[str] child_counts:[u32]
  extensions:[Extension]
table ParentStep step:u64 attempt:str
table StepSummary version:u8=1 step:u64 generation:u64 created_unix_ns:i64 world_size:u32 attempt:str
  base_step:u64? tensor_count:u64 value_count:u64 chunk_count:u64 reused_chunk_count:u64
  logical_bytes:u64 written_bytes:u64 structure:Digest rewritten:u64 metrics:[Metric] note:str
  parent:ParentStep run:[u8]
table SegmentRecord version:u8=1 segment_id:u64 epoch:u32 step:u64 rank:u32 file_bytes:u64
  payload_bytes:u64 chunk_count:u64 footer_digest:u64 page_digests_checksum:u64
table FooterEntry column:u8 key:[u8] value:[u8]
table SegmentFooter version:u8=1 segment_id:u64 store_uuid:[u8] step:u64 rank:u32 attempt:str
  entries:[FooterEntry]
table TableRef id:ObjectId file_bytes:u64 record_count:u64 digest:u64
table StepEntry summary:StepSummary tables:[TableRef] usage:[SegmentUse] usage_in_tables:u8
table StepsPage version:u8=1 steps:[StepEntry]
table PageRef id:ObjectId file_bytes:u64 digest:u64 steps:[u8]
table Writer host:str pid:u32 session:str since_unix_ns:i64
table RemovedObject name:str since_unix_ns:i64 file_bytes:u64
table Tag name:str step:u64
table KeepBest metric:str count:u64 highest:u8
table RetentionPolicy keep_last:u64 keep_every:u64 keep_best:[KeepBest]
table RootRecord version:u8=1 number:u64 commit_id:[u8] store_uuid:[u8] epoch:u32 writer:Writer
  created_unix_ns:i64 recent:[StepEntry] pages:[PageRef] removed:[RemovedObject]
  kept_before_epoch:u32 tags:[Tag] retention:RetentionPolicy compress:u8 predecessor:[u8]
  read_features:[str] write_features:[str]
"""
IDENTIFIERS = {
    "StepSummary": b"CNST", "TensorRecord": b"CNTE", "ChunkRecord": b"CNCH", "ValueRecord": b"CNVA",
    "StructureRecord": b"CNTR", "SegmentRecord": b"CNSG", "SegmentFooter": b"CNSF",
    "RootRecord": b"CNRO", "StepsPage": b"CNPS",
}  # fmt: skip
VERSIONS = {"ChunkRecord": 4}  # the highest known version; 1 for all others
FORMATS = {"u8": "B", "u32": "I", "u64": "Q", "i64": "q", "f64": "d"}


def parse_schema(text):
    """Tables as lists of (name, type, default), and structs as (names, format, size, alignment)."""
    tables, structs, group = {}, {}, None
    for word in text.split():
        if word in ("table", "struct"):
            kind, group = word, None
        elif group is None:
            group = word
            if kind == "table":
                tables[group] = []
            else:
                structs[group] = ((), "<", 0, 1)
        else:
            name, _, type_name = word.partition(":")
            type_name, _, default = type_name.partition("=")
            if kind == "table":
                absent = None if type_name[-1] == "?" or type_name not in FORMATS else 0
                tables[group].append(
                    (name, type_name.rstrip("?"), int(default) if default else absent)
                )
            else:
                names, layout, size, align = structs[group]
                own = struct.calcsize("<" + FORMATS[type_name])
                padding = -size % own
                layout += f"{padding}x{FORMATS[type_name]}"
                structs[group] = (names + (name,), layout, size + padding + own, max(align, own))
    for name, (names, layout, size, align) in structs.items():
        structs[name] = (names, layout + f"{-size % align}x", size + -size % align, align)
    return tables, structs


TABLES, STRUCTS = parse_schema(SCHEMA)


def entries_of(steps, where):
    """The entries, which also have the fields of their summaries."""
    for entry in steps or []:
        check(entry.summary, where, None, "an entry has no summary")
        vars(entry).update(vars(entry.summary))
    return steps or []


class FlatBuffer:
    """Reads a table and all that it refers to, and checks each position before it uses it.

    No two objects share bytes in what Cairn writes. So no more bytes are read than the buffer has,
    whatever its offsets are, which bounds memory.
    """

    def __init__(self, data, where):
        self.data, self.where, self.unread = data, where, len(data)

    def range(self, at, length, align):
        check(
            at % align == 0 and at + length <= len(self.data),
            self.where,
            at,
            f"{length} bytes of a FlatBuffer are outside of its {len(self.data)}, or not aligned",
        )
        self.unread -= length
        check(self.unread >= 0, self.where, at, "objects of a FlatBuffer share bytes")
        return at

    def offset(self, at):
        """The position to which the offset at `at` points."""
        distance = u32(self.data, self.range(at, 4, 4))
        check(0 < distance < 1 << 31, self.where, at, "an offset does not point forward")
        return at + distance

    def scalar(self, at, kind):
        size = struct.calcsize("<" + FORMATS[kind])
        return struct.unpack_from("<" + FORMATS[kind], self.data, self.range(at, size, size))[0]

    def record(self, at, name):
        names, layout, size, align = STRUCTS[name]
        values = struct.unpack_from(layout, self.data, self.range(at, size, align))
        return SimpleNamespace(**dict(zip(names, values, strict=True)))

    def value(self, at, kind):
        if kind in FORMATS:
            return self.scalar(at, kind)
        if kind in STRUCTS:
            return self.record(at, kind)
        at = self.offset(at)
        if kind in TABLES:
            return self.table(at, kind)
        count, begin = u32(self.data, self.range(at, 4, 4)), at + 4
        if kind == "str":
            data = self.data[self.range(begin, count + 1, 1) : begin + count]
            check(self.data[begin + count] == 0, self.where, begin + count, "a text does not end")
            try:
                return data.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                raise FormatError(self.where, begin, "a text is not UTF-8") from None
        element = kind[1:-1]
        if element == "u8":
            return bytes(self.data[self.range(begin, count, 1) : begin + count])
        size = 4
        if element in FORMATS or element in STRUCTS:
            size = (
                struct.calcsize("<" + FORMATS[element])
                if element in FORMATS
                else STRUCTS[element][2]
            )
        check(
            count * size <= self.unread, self.where, at, f"a vector of {count} elements is too long"
        )
        return [self.value(begin + i * size, element) for i in range(count)]

    def table(self, at, name):
        self.range(at, 4, 4)
        vtable = at - struct.unpack_from("<i", self.data, at)[0]
        check(0 <= vtable <= len(self.data) - 4 and vtable % 2 == 0, self.where, at, "no vtable")
        vtable_size, size = struct.unpack_from("<HH", self.data, vtable)
        check(
            vtable_size >= 4
            and vtable_size % 2 == 0
            and vtable + vtable_size <= len(self.data)
            and size >= 4
            and at + size <= len(self.data),
            self.where,
            vtable,
            "a wrong vtable",
        )
        found = SimpleNamespace()
        for i, (field, kind, default) in enumerate(TABLES[name]):
            slot = 4 + 2 * i
            place = (
                struct.unpack_from("<H", self.data, vtable + slot)[0] if slot < vtable_size else 0
            )
            check(place < size, self.where, vtable + slot, "a field is outside of its table")
            setattr(found, field, self.value(at + place, kind) if place else default)
        return found


def parse(data, name, where):
    """A record: a verified buffer of a known version (table.md, Records)."""
    check(len(data) >= 8 and data[4:8] == IDENTIFIERS[name], where, 4, f"not a {name}")
    buffer = FlatBuffer(data, where)
    record = buffer.table(buffer.offset(0), name)
    check(
        1 <= record.version <= VERSIONS.get(name, 1),
        where,
        None,
        f"version {record.version} of {name} is unknown",
    )
    return record


# ---- Tables (sst.md, table.md) ------------------------------------------------------------------

STEPS, TENSORS, CHUNKS, VALUES, STRUCTURES = (bytes([number]) for number in range(5))
SEGMENTS, USAGE, NEXT_TABLES = (bytes([number]) for number in (253, 254, 255))
FOOTER, TRAILER, SUFFIX = 53, 5, bytes([1, 0, 0, 0, 0, 0, 0, 0])
PROPERTIES = {
    "block.based.table.index.type": bytes([2, 0, 0, 0]),
    "comparator": b"leveldb.BytewiseComparator",
    "deleted.keys": b"\0", "merge.operands": b"\0", "num.range-deletions": b"\0",
    "filter.size": b"\0",
    "external_sst_file.global_seqno": bytes(8), "external_sst_file.version": bytes([2, 0, 0, 0]),
    "index.key.is.user.key": b"\1", "index.value.is.delta.encoded": b"\1",
}  # fmt: skip


def handle(data, at, where):
    """The position and length of a block, and the position after the handle."""
    offset, at = varint(data, at, where)
    length, at = varint(data, at, where)
    return (offset, length), at


class Table:
    """A file in the subset of RocksDB's format. It is opened only if its digest is right."""

    def __init__(self, directory, name, length, count, digest):
        self.file, self.name = File(directory, name), name
        check(
            self.file.size == length, name, None, f"has {self.file.size} bytes instead of {length}"
        )
        check(self.file.digest() == digest, name, None, "wrong digest of the complete table")
        check(length > FOOTER, name, None, "too short")
        footer = self.file.read(length - FOOTER, FOOTER)
        check(
            footer[41:] == bytes.fromhex("05000000f7cff485b741e288"), name, length - 12, "no footer"
        )
        check(footer[0] == 4, name, length - FOOTER, f"checksum {footer[0]} is unknown")
        self.metaindex, at = handle(footer, 1, name)
        self.top_place, at = handle(footer, at, name)
        check(at <= 41 and not any(footer[at:41]), name, length - 12, "the footer is not padded")
        metaindex = self.entries(self.metaindex, 1)
        check(
            [key for key, _ in metaindex] == [b"rocksdb.properties"], name, None, "unknown blocks"
        )
        self.properties_place, _ = handle(metaindex[0][1], 0, name)
        properties = dict(self.entries(self.properties_place, None))
        for key, value in PROPERTIES.items():
            found = properties.get(b"rocksdb." + key.encode())
            check(found == value, name, None, f"the property {key} is {found}")
        self.count = varint(properties.get(b"rocksdb.num.entries", b""), 0, name)[0]
        check(self.count == count, name, None, f"has {self.count} records instead of {count}")
        self.block = functools.lru_cache(64)(lambda place: self.records(place))
        self.partition = functools.lru_cache(64)(lambda place: self.index(place))
        self.top = self.index(self.top_place)

    def content(self, place, may_compress):
        offset, length = place
        check(
            offset + length + TRAILER <= self.file.size - FOOTER, self.name, offset, "no such block"
        )
        data = self.file.read(offset, length + TRAILER)
        data, kind, checksum = data[:length], data[length], u32(data, length + 1)
        found = (digest64(data) ^ kind * 0x6B9083D9) & 0xFFFFFFFF
        check(found == checksum, self.name, offset, "the block has a wrong checksum")
        if kind == 0:
            return data
        check(kind == 7 and may_compress, self.name, offset, f"the block has compression {kind}")
        expected, at = varint(data, 0, self.name)
        check(expected < 1 << 32, self.name, offset, "the block is too long")
        return decompress(data[at:], expected, self.name, offset + at)

    def entries(self, place, interval, kind="other"):
        """The entries of a block, with a restart point at each `interval`-th one."""
        data, where, base = self.content(place, kind == "records"), self.name, place[0]
        count = u32(data, len(data) - 4)
        end = len(data) - 4 - 4 * count
        check(
            len(data) >= 4 and end > 0 and count > 0, where, base, "the block has no restart points"
        )
        found, restarts, at, key = [], [], 0, b""
        while at < end:
            begin, first = at, len(found) % interval == 0 if interval else not found
            shared, at = varint(data, at, where)
            added, at = varint(data, at, where)
            length, at = varint(data, at, where) if kind != "index" else (0, at)
            if first:
                restarts.append(begin)
            check(
                shared <= (0 if first else len(key)) and at + added + length <= end,
                where,
                base + begin,
                "an entry is longer than its block or shares too much",
            )
            key, at = key[:shared] + data[at : at + added], at + added
            if kind == "index":
                value, at = handle(data, at, where)
            else:
                value, at = data[at : at + length], at + length
            found.append((key, value))
        check(at == end, where, base, "the last entry ends after the block")
        expected = b"".join(position.to_bytes(4, "little") for position in restarts)
        check(expected == data[end:-4], where, base, "restart points are at other entries")
        return found

    def records(self, place):
        """Sorted keys and their values of a block of records."""
        found = self.entries(place, 16, "records")
        check(
            all(key[-8:] == SUFFIX and len(key) > 8 for key, _ in found),
            self.name,
            place[0],
            "a key has another suffix",
        )
        return self.ascending([key[:-8] for key, _ in found], place), [value for _, value in found]

    def index(self, place):
        found = self.entries(place, 1, "index")
        return self.ascending([key for key, _ in found], place), [place for _, place in found]

    def ascending(self, keys, place):
        check(all(a < b for a, b in zip(keys, keys[1:])), self.name, place[0], "keys do not ascend")
        return keys

    def get(self, key):
        """The value of a key: None if there is none, empty for a tombstone."""
        return next((value for found, value in self.scan(key) if found == key), None)

    def scan(self, prefix):
        """The keys and values whose keys begin with `prefix`, ascending."""
        top_keys, partitions = self.top
        for partition in partitions[bisect.bisect_left(top_keys, prefix) :]:
            keys, blocks = self.partition(partition)
            for place in blocks[bisect.bisect_left(keys, prefix) :]:
                keys_of_block, values = self.block(place)
                for i in range(bisect.bisect_left(keys_of_block, prefix), len(values)):
                    if not keys_of_block[i].startswith(prefix):
                        return
                    yield keys_of_block[i], values[i]

    def verify(self):
        """Reads all blocks and checks what single reads do not (sst.md, What a reader checks)."""
        expected = count = 0
        last = b""
        for top_key, partition in zip(*self.top, strict=True):
            keys, blocks = self.partition(partition)
            check(
                keys[-1] == top_key, self.name, partition[0], "the partition has another last key"
            )
            for key, place in zip(keys, blocks, strict=True):
                check(place[0] == expected, self.name, expected, "a gap between blocks")
                records, _ = self.block(place)
                check(
                    (not count or last < records[0]) and records[-1] <= key,
                    self.name,
                    place[0],
                    "keys of the block are outside of its range in the index",
                )
                last, count, expected = key, count + len(records), sum(place) + TRAILER
        for place in (*self.top[1], self.top_place, self.properties_place, self.metaindex):
            check(place[0] == expected, self.name, expected, "a gap between blocks")
            expected = sum(place) + TRAILER
        check(expected == self.file.size - FOOTER, self.name, expected, "a gap before the footer")
        check(count == self.count, self.name, None, f"has {count} records instead of {self.count}")


# ---- The store, roots and pages (store.md, root.md) ---------------------------------------------

HEX = r"[0-9a-f]{%d}"
ROOT_NAME = re.compile(HEX % 16 + r"\.root")


def require_features(names):
    """Refuses a store that a reader must know features to read (compatibility.md)."""
    unknown = [name for name in names or [] if name not in KNOWN_FEATURES]
    check(
        not unknown, "the store", None, f"needs features that this reader does not know: {unknown}"
    )


class Store:
    """A store in a directory, as its newest root at the time of the open describes it."""

    def __init__(self, directory):
        self.directory = os.path.abspath(directory)
        self.table = functools.lru_cache(64)(self.open_table)
        self.uuid = self.read_identity()
        self.root = self.newest_root()
        require_features(self.root.read_features)
        self.entries = self.read_entries()
        self.tags = {tag.name: tag.step for tag in self.root.tags or []}

    def file(self, name):
        return File(self.directory, name)

    def read_identity(self):
        """The uuid in CAIRN. Unknown lines are ignored."""
        file = self.file("CAIRN")
        text = file.read(0, min(file.size, 4097))
        check(len(text) <= 4096, "CAIRN", 4096, "too long")
        body, _, last = text.rpartition(b"checksum ")
        check(last == b"%016x\n" % digest64(body), "CAIRN", len(body), "wrong checksum")
        lines = body.decode("ascii", "replace").split("\n")
        check(lines[0] == "cairn store", "CAIRN", 0, "not a store")
        check(lines[1] == f"format {FORMAT}", "CAIRN", 12, f"{lines[1]!r} is not format {FORMAT}")
        pairs = [line.partition(" ") for line in lines[:-1]]
        values = {name: value for name, _, value in pairs}
        check(
            len(values) == len(pairs) and lines[-1] == "", "CAIRN", None, "two lines have one name"
        )
        check(re.fullmatch(HEX % 32, values.get("uuid", "")), "CAIRN", None, "has no uuid")
        require_features(values["read-features"].split(" ") if "read-features" in values else [])
        return bytes.fromhex(values["uuid"])

    def root_numbers(self):
        """The numbers of all names of roots, highest first."""
        try:
            names = [name for name in os.listdir(os.path.join(self.directory, "roots"))]
        except OSError as error:
            raise FormatError("roots", None, f"cannot be listed: {error.strerror}") from None
        numbers = [2**64 - 1 - int(name[:16], 16) for name in names if ROOT_NAME.fullmatch(name)]
        return sorted((number for number in numbers if 0 < number < 2**63), reverse=True)

    def read_root(self, number):
        name = f"roots/{2**64 - 1 - number:016x}.root"
        root = parse(read_frame(self.file(name), b"CNRT"), "RootRecord", name)
        check(root.number == number, name, None, f"is root {root.number}")
        for field in (root.commit_id, root.store_uuid, root.predecessor or bytes(16)):
            check(field is not None and len(field) == 16, name, None, "an id has another length")
        return root

    def newest_root(self):
        """The highest root that follows the one before it. Roots that do not are strays."""
        numbers = self.root_numbers()
        for number in numbers:
            root = self.read_root(number)
            if root.store_uuid != self.uuid:
                continue
            if number == 1:
                return root
            check(
                number - 1 in numbers,
                f"roots/{2**64 - number:016x}.root",
                None,
                f"does not exist, so root {number} may not be the newest",
            )
            try:
                before = self.read_root(number - 1)
            except FormatError:
                return root  # a damaged predecessor counts as the right one
            if root.predecessor == before.commit_id:
                return root
        raise FormatError("roots", None, "there is no root of this store")

    def read_entries(self):
        """The entries of all steps by number."""
        found = {}

        def add(entry, where):
            check(entry.step not in found, where, None, f"step {entry.step} is listed twice")
            check(
                entry.tables and len(entry.tables) <= MAX_TABLES and entry.structure,
                where,
                None,
                f"the entry of step {entry.step} is incomplete",
            )
            check(all(table.id for table in entry.tables), where, None, "a table has no id")
            found[entry.step] = entry

        recent = entries_of(self.root.recent, "root")
        for ref in self.root.pages or []:
            steps, number, at = [], 0, 0
            while at < len(ref.steps or b""):
                distance, at = varint(ref.steps, at, "a reference to a page")
                check(distance or not steps, "a reference to a page", at, "steps do not ascend")
                number += distance
                steps.append(number)
            check(
                ref.id and steps and recent and number < recent[-1].step,
                "a reference to a page",
                None,
                "it has no id or wrong steps",
            )
            name = f"pages/{ref.id.epoch:08x}-{ref.id.id:016x}.steps"
            file = self.file(name)
            check(
                file.size == ref.file_bytes and file.digest() == ref.digest,
                name,
                None,
                "wrong length or digest of the page",
            )
            page = parse(read_frame(file, b"CNPG"), "StepsPage", name)
            entries = {entry.step: entry for entry in entries_of(page.steps, name)}
            for step in steps:
                check(step in entries, name, None, f"step {step} is missing")
                add(entries[step], name)
        for before, entry in zip([None, *recent], recent):
            check(
                not before or before.step < entry.step, "root", None, "recent steps do not ascend"
            )
            add(entry, "root")
        return dict(sorted(found.items()))

    def open_table(self, epoch, number, length, count, digest):
        name = f"tables/{epoch:08x}-{number:016x}.sst"
        return Table(self.directory, name, length, count, digest)

    def step(self, name="latest"):
        """A step, by its number, its tag or "latest"."""
        number = max(self.entries, default=None) if name == "latest" else self.tags.get(name, name)
        number = int(number) if str(number).isdigit() else number
        check(number in self.entries, "the store", None, f"there is no step {name!r}")
        return Step(self, self.entries[number])

    def verify(self):
        """The errors in all objects that the store needs."""
        return Verification(self).errors


# ---- Deltas (delta.md) --------------------------------------------------------------------------


def unpack_symbols(stream, count, where):
    """`count` symbols of two bits, the first one in the lowest bits."""
    check(len(stream) == -(-count // 4), where, None, "a stream of symbols has another length")
    packed = numpy.frombuffer(stream, numpy.uint8)
    symbols = (packed[:, None] >> numpy.arange(0, 8, 2, dtype=numpy.uint8) & 3).reshape(-1)
    check(not symbols[count:].any(), where, None, "unused bits of a stream of symbols are not 0")
    return symbols[:count]


def read_streams(data, count, limit, at, where):
    """The streams after the directory at `at`; their total is limited."""
    begin, streams, total = at + 8 * count, [], 0
    check(begin <= len(data), where, at, "the directory ends after the delta")
    for i in range(count):
        length, stored = u32(data, at + 8 * i), u32(data, at + 8 * i + 4)
        check(
            stored <= length and stored <= len(data) - begin,
            where,
            at + 8 * i,
            "a stream is too long",
        )
        total += length if i else 0
        check(
            total <= limit and (i or length == limit // PAGE * 5 + (5 if limit % PAGE else 0)),
            where,
            at + 8 * i,
            "a stream has another length",
        )
        stream = data[begin : begin + stored]
        streams.append(
            stream if stored == length else decompress(stream, length, where, begin, False)
        )
        begin += stored
    check(begin == len(data), where, begin, "bytes after the last stream")
    return streams


def apply_delta(data, base, where):
    """The version of a chunk that results from a delta and the version before it."""
    check(
        len(data) >= 16 and data[:5] == b"CDLT\1" and data[6:8] == b"\0\0", where, 0, "not a delta"
    )
    size, length, pages = data[5], len(base), -(-len(base) // PAGE)
    check(size in (1, 2, 4, 8) and length % size == 0, where, 5, f"elements have {size} bytes")
    check(
        u64(data, 8) == length and 16 + 8 * pages <= len(data),
        where,
        8,
        "the chunk has another length",
    )
    table, gaps, sparse, dense, large, raw, *planes = read_streams(
        data, 6 + size, length, 16 + 8 * pages, where
    )
    columns = numpy.frombuffer(table, numpy.uint8).reshape(5, pages).astype(numpy.int64)
    thresholds = columns[0]
    sparse_counts, dense_counts = columns[1] + 256 * columns[2], columns[3] + 256 * columns[4]
    sparse = unpack_symbols(sparse, int(sparse_counts.sum()), where)
    dense = unpack_symbols(dense, int(dense_counts.sum()), where)
    # A gap ends with its first byte that is not 255.
    gap_bytes = numpy.frombuffer(gaps, numpy.uint8)
    ends = numpy.flatnonzero(gap_bytes != 255)
    check(
        len(ends) == sparse_counts.sum() and (len(gaps) == 0 or gap_bytes[-1] != 255),
        where,
        None,
        "there are not as many positions as sparse elements",
    )
    distances = 255 * numpy.diff(ends, prepend=-1) - 255 + gap_bytes[ends]
    large = numpy.frombuffer(large, numpy.uint8).astype(numpy.uint64)
    raw = numpy.frombuffer(raw, numpy.uint8)
    check(len({len(plane) for plane in planes}) == 1, where, None, "planes have different lengths")
    wide = numpy.ascontiguousarray(
        numpy.array([numpy.frombuffer(plane, numpy.uint8) for plane in planes]).T
    )
    wide = wide.reshape(-1).view(f"<u{size}").astype(f"=u{size}")
    used = collections.Counter()  # elements that are used of each stream

    def take(name, stream, count):
        begin = used[name]
        used[name] += count
        check(used[name] <= len(stream), where, None, f"the stream of {name} is too short")
        return stream[begin : used[name]]

    def values(name, symbols, count):
        """The next `count` values, as u64."""
        found = take(name, symbols, count).astype(numpy.uint64)
        is_large = numpy.flatnonzero(found == 3)
        small = take("large values", large, len(is_large))
        found[is_large] += small
        is_wide = is_large[small == 255]
        found[is_wide] = take("planes", wide, len(is_wide))
        check((found[is_wide] >= 258).all(), where, None, "a wide value is small")
        return found

    def difference(v):
        """The inverse of z: 0, 1, 2, 3, 4 are 0, -1, 1, -2, 2, modulo 2^n."""
        v = v.astype(f"=u{size}")
        one = v.dtype.type(1)
        return v >> one ^ (~(v & one) + one)

    old = numpy.frombuffer(base, f"<u{size}")
    new = old.astype(f"=u{size}")
    number = new.dtype.type
    for i in range(pages):
        begin, end = i * PAGE // size, min((i + 1) * PAGE, length) // size
        page, threshold = new[begin:end], int(thresholds[i])
        count, dense_count = int(sparse_counts[i]), int(dense_counts[i])
        if threshold >= 254:
            check(
                count == dense_count == 0,
                where,
                None,
                f"page {i} has elements and is stored completely",
            )
            if threshold == 255:
                page[:] = take("raw pages", raw, len(page) * size).view(f"<u{size}")
            else:
                rotated = take("planes", wide, len(page))
                page[:] = rotated >> number(1) | rotated << number(8 * size - 1)
        else:
            is_dense = page << number(1) < number(threshold << 8 * (size - 1))
            check(is_dense.sum() == dense_count, where, None, f"page {i} has other dense elements")
            places = numpy.cumsum(take("gaps", distances, count) + 1) - 1
            check(
                not count or (places[-1] < len(page) and not is_dense[places].any()),
                where,
                None,
                f"a position in page {i} is not one of a sparse element",
            )
            changed = values("sparse symbols", sparse, count)
            check((changed < 2 ** (8 * size) - 1).all(), where, None, "a difference is too large")
            page[places] += difference(changed + numpy.uint64(1))
            page[is_dense] += difference(values("dense symbols", dense, dense_count))
    for name, stream in (("large values", large), ("raw pages", raw), ("planes", wide)):
        check(used[name] == len(stream), where, None, f"the stream of {name} is too long")
    result = new.astype(f"<u{size}").tobytes()
    check(
        page_digests(result) == data[16 : 16 + 8 * pages],
        where,
        16,
        "a decoded page has another digest",
    )
    return result


# ---- Steps: keys, values, tensors ---------------------------------------------------------------

# dtypes.md: names by number, from 1 on, and how numpy shows an element. Elements that numpy
# does not have are shown as their bits.
DTYPES = [None] + [
    (name, numpy.dtype([("real", "<f2"), ("imag", "<f2")]) if kind == "h" else numpy.dtype(kind))
    for name, _, kind in (word.partition("=") for word in """
bool=|b1 uint8=|u1 int8=|i1 int16=<i2 int32=<i4 int64=<i8 uint16=<u2 uint32=<u4 uint64=<u8
float16=<f2 bfloat16=<u2 float32=<f4 float64=<f8 complex32=h complex64=<c8 complex128=<c16
float8_e4m3fn=|u1 float8_e4m3fnuz=|u1 float8_e5m2=|u1 float8_e5m2fnuz=|u1 float8_e8m0fnu=|u1
float4_e2m1fn_x2=|u1 uint1=|u1 uint2=|u1 uint3=|u1 uint4=|u1 uint5=|u1 uint6=|u1 uint7=|u1 int1=|u1
int2=|u1 int3=|u1 int4=|u1 int5=|u1 int6=|u1 int7=|u1 bits8=|u1 bits16=<u2 bits1x8=|u1 bits2x4=|u1
bits4x2=|u1""".split())
]  # fmt: skip

# structure.fbs
DICT, ORDERED_DICT, COUNTER, LIST, TUPLE, TORCH_SIZE, TENSOR, ARRAY, SCALAR, VALUE = range(10)
ROOT_KEY, INDEX, STRING, INT, BOOL, NONE, FLOAT = range(7)


class Pickle(bytes):
    """A value that was pickled. It is data, and nothing here executes it."""


def read_value(record, where):
    """The Python object of a ValueRecord (value.fbs)."""
    kind, data = record.kind, record.bytes or b""
    check(kind <= 8, where, None, f"value kind {kind} is unknown")
    lengths = {4: 8, 5: 16}
    check(len(data) == lengths.get(kind, len(data)), where, None, "a number has another length")
    if kind < 3:
        check(kind != 1 or record.integer in (0, 1), where, None, "a bool is neither 0 nor 1")
        return (None, bool(record.integer), record.integer)[kind]
    if kind == 3:
        return int.from_bytes(data, "little", signed=True)
    if kind == 6:
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise FormatError(where, None, "a text is not UTF-8") from None
    if kind == 4:
        return struct.unpack("<d", data)[0]
    if kind == 5:
        return complex(*struct.unpack("<dd", data))
    return data if kind == 7 else Pickle(data)


def read_key(kind, text, where):
    """The Python object that is the key of a dict."""
    try:
        if kind == STRING:
            return text
        if kind == INT and re.fullmatch("-?[0-9]+", text):
            return int(text)
        if kind == FLOAT:
            return float(text)
        return {(BOOL, "True"): True, (BOOL, "False"): False, (NONE, "None"): None}[kind, text]
    except (KeyError, ValueError):
        raise FormatError(where, None, f"a key of kind {kind} is {text[:40]!r}") from None


class Step:
    """One step: its records are merged from its tables, of which the first with a key counts."""

    def __init__(self, store, entry):
        self.store, self.entry, self.where = store, entry, f"step {entry.step}"
        self.tables = [
            store.table(ref.id.epoch, ref.id.id, ref.file_bytes, ref.record_count, ref.digest)
            for ref in entry.tables
        ]
        self.segment = functools.lru_cache(1024)(self.open_segment)

    def get(self, key):
        """The record of a key, or None."""
        for table in self.tables:
            value = table.get(key)
            if value is not None:
                return value or None
        return None

    def scan(self, prefix):
        """The records whose keys begin with `prefix`, without those that a tombstone removes."""
        last = None
        streams = [
            ((key, i, value) for key, value in table.scan(prefix))
            for i, table in enumerate(self.tables)
        ]
        for key, _, value in heapq.merge(*streams):
            if key != last and value:
                yield key, value
            last = key

    # -- The structure: a tree in preorder

    def structure(self):
        data = self.get(STRUCTURES)
        check(data is not None, self.where, None, "there is no StructureRecord")
        check(
            tree_digest(data) == digest_of(self.entry.structure),
            self.where,
            None,
            "the StructureRecord has another digest",
        )
        record = parse(data, "StructureRecord", self.where)
        vectors = [record.kinds, record.key_kinds, record.keys, record.child_counts]
        check(
            all(vectors) and len({len(vector) for vector in vectors}) == 1,
            self.where,
            None,
            "the vectors of the StructureRecord have different lengths",
        )
        return record

    def nodes(self):
        """Each node in preorder: kind, kind and text of its key, number of children, and FQN."""
        record, open_nodes = self.structure(), [(1, None)]  # children that are missing, name
        for kind, key_kind, key, children in zip(
            record.kinds, record.key_kinds, record.keys, record.child_counts, strict=True
        ):
            while open_nodes and open_nodes[-1][0] == 0:
                open_nodes.pop()
            check(
                open_nodes and len(open_nodes) <= MAX_LEVELS + 1,
                self.where,
                None,
                "the tree has another number of nodes, or too many levels",
            )
            missing, prefix = open_nodes[-1]
            open_nodes[-1] = (missing - 1, prefix)
            check(
                (key_kind == ROOT_KEY) == (prefix is None) and kind <= VALUE,
                self.where,
                None,
                "a node has an unknown kind or a wrong key",
            )
            check(kind < TENSOR or children == 0, self.where, None, "a leaf has children")
            name = "" if prefix is None else key if len(open_nodes) == 2 else f"{prefix}.{key}"
            check(len(name) <= MAX_FQN, self.where, None, "a name is too long")
            open_nodes.append((children, name))
            yield kind, key_kind, key, children, name
        check(not any(missing for missing, _ in open_nodes), self.where, None, "nodes are missing")

    def leaves(self):
        """Kind and FQN of each leaf."""
        return ((kind, name) for kind, _, _, _, name in self.nodes() if kind >= TENSOR)

    def keys(self):
        return [name for _, name in self.leaves()]

    def state(self):
        """The complete state. Tensors that share memory are views of one array."""
        payloads, stack, result = {}, [], None
        for kind, key_kind, key, children, name in self.nodes():
            if kind >= TENSOR:
                item = self.leaf(kind, name, payloads)
            else:
                item = []
            stack.append((kind, key_kind, key, children, item))
            while len(stack[-1][4] if stack[-1][0] < TENSOR else ()) == stack[-1][3]:
                kind, key_kind, key, _, item = stack.pop()
                if kind < TENSOR:
                    item = self.container(kind, item)
                if not stack:
                    return item
                stack[-1][4].append((key_kind, key, item))
        return result

    def container(self, kind, items):
        if kind >= LIST:
            for i, (key_kind, key, _) in enumerate(items):
                check(
                    key_kind == INDEX and key == str(i), self.where, None, "a list has another key"
                )
            return [item for _, _, item in items] if kind == LIST else tuple(x for _, _, x in items)
        found = {read_key(key_kind, key, self.where): item for key_kind, key, item in items}
        types = {DICT: dict, ORDERED_DICT: collections.OrderedDict, COUNTER: collections.Counter}
        return types[kind](found)

    def leaf(self, kind, name, payloads):
        if kind == VALUE:
            return self.value(name)
        array = self.tensor(name, payloads=payloads)
        return array[()] if kind == SCALAR else array

    def value(self, name):
        data = self.get(VALUES + name.encode("utf-8", "surrogatepass") + b"\0")
        check(data is not None, self.where, None, f"there is no value {name!r}")
        return read_value(parse(data, "ValueRecord", f"value {name!r}"), f"value {name!r}")

    def read(self, name, index=()):
        """A leaf: a value, or a tensor or a part of it."""
        if self.get(TENSORS + name.encode("utf-8", "surrogatepass") + b"\0") is None:
            return self.value(name)
        return self.tensor(name, index)

    # -- Tensors

    def tensor_record(self, name):
        where = f"tensor {name!r}"
        data = self.get(TENSORS + name.encode("utf-8", "surrogatepass") + b"\0")
        check(data is not None, self.where, None, f"there is no {where}")
        return self.check_tensor(parse(data, "TensorRecord", where), where)

    def check_tensor(self, record, where):
        check(0 < record.dtype < len(DTYPES), where, None, f"dtype {record.dtype} is unknown")
        record.shape = record.shape or []
        record.dtype_name, record.numpy = DTYPES[record.dtype]
        check(
            record.nbytes < 2**63
            and all(size < 2**63 for size in record.shape)
            and math.prod(record.shape) * record.numpy.itemsize == record.nbytes,
            where,
            None,
            "the shape and the number of bytes do not agree",
        )
        check(len(record.shape) <= 64, where, None, "numpy has no arrays of so many dimensions")
        record.alias_strides = record.alias_strides or []
        check(
            record.alias_of is None or len(record.alias_strides) == len(record.shape),
            where,
            None,
            "an alias has another number of strides",
        )
        return record

    def tensor(self, name, index=(), payloads=None):
        """A tensor, or the part of it that a tuple of slices with steps of 1 gives."""
        record = self.tensor_record(name)
        ranges = [slice(*part.indices(size)) for part, size in zip(index, record.shape)]
        ranges += [slice(0, size) for size in record.shape[len(ranges) :]]
        if record.alias_of is None:
            if payloads is None:
                return self.part_of_tensor(name, record, ranges)
            if name not in payloads:
                payloads[name] = self.part_of_tensor(name, record, ranges)
            return payloads[name]
        where = f"tensor {name!r}"
        owner = self.tensor_record(record.alias_of)
        check(owner.alias_of is None, where, None, "is an alias of an alias")
        item, offset = record.numpy.itemsize, record.alias_offset_bytes
        last = sum((size - 1) * stride for size, stride in zip(record.shape, record.alias_strides))
        check(
            0 in record.shape or offset + (last + 1) * item <= owner.nbytes,
            where,
            None,
            f"ends after the tensor {record.alias_of!r}",
        )
        if 0 in record.shape:
            return numpy.zeros(record.shape, record.numpy)
        payload = self.tensor(record.alias_of, payloads=payloads).reshape(-1).view(numpy.uint8)
        view = numpy.lib.stride_tricks.as_strided(
            payload[offset : offset + item].view(record.numpy),
            record.shape,
            [stride * item for stride in record.alias_strides],
            writeable=False,
        )
        return view[tuple(ranges)]

    def chunks(self, name, record):
        """Offsets and ChunkRecord of each chunk of a tensor, which tile its shape."""
        found, volume, prefix = [], 0, CHUNKS + name.encode("utf-8", "surrogatepass") + b"\0"
        for key, data in self.scan(prefix):
            where = f"a chunk of {name!r}"
            chunk = parse(data, "ChunkRecord", where)
            offsets = key[len(prefix) :]
            chunk.sizes = chunk.sizes or []
            check(
                len(offsets) == 8 * len(record.shape) and len(chunk.sizes) == len(record.shape),
                where,
                None,
                "has another number of dimensions",
            )
            offsets = struct.unpack(f">{len(record.shape)}Q", offsets)
            check(
                all(
                    offset + size <= extent and size > 0
                    for offset, size, extent in zip(offsets, chunk.sizes, record.shape)
                ),
                where,
                None,
                "is outside of the tensor",
            )
            chunk.nbytes = math.prod(chunk.sizes) * record.numpy.itemsize
            chunk.where = f"chunk {offsets} of {name!r}"
            check_chunk(chunk, chunk.where)
            found.append((offsets, chunk))
            volume += chunk.nbytes
        where = f"tensor {name!r}"
        check(
            len(found) == record.chunk_count,
            where,
            None,
            f"has {len(found)} chunks, not {record.chunk_count}",
        )
        check(
            volume == (record.nbytes if record.alias_of is None else 0),
            where,
            None,
            "its chunks do not have all of its elements",
        )
        self.check_tiling(found, len(record.shape), where)
        return found

    def check_tiling(self, chunks, dimensions, where):
        """Chunks that have as many elements as the tensor tile it if no two overlap."""
        edges = [
            sorted(
                {
                    edge
                    for offsets, chunk in chunks
                    for edge in (offsets[d], offsets[d] + chunk.sizes[d])
                }
            )
            for d in range(dimensions)
        ]
        cells = math.prod(len(edge) - 1 for edge in edges)
        check(cells <= 1 << 26, where, None, "its chunks are too irregular for this reader")
        covered = numpy.zeros([max(len(edge) - 1, 0) for edge in edges], bool)
        for offsets, chunk in chunks:
            cell = tuple(
                slice(bisect.bisect_left(edge, offset), bisect.bisect_left(edge, offset + size))
                for edge, offset, size in zip(edges, offsets, chunk.sizes)
            )
            check(not covered[cell].any(), where, None, "two of its chunks overlap")
            covered[cell] = True

    def part_of_tensor(self, name, record, ranges):
        chunks = self.chunks(name, record)
        begins = [part.start for part in ranges]
        shape = [max(part.stop - part.start, 0) for part in ranges]
        result = numpy.empty(shape, record.numpy)
        for offsets, chunk in chunks:
            low = [max(begin, offset) for begin, offset in zip(begins, offsets)]
            high = [
                min(begin + size, offset + extent)
                for begin, size, offset, extent in zip(begins, shape, offsets, chunk.sizes)
            ]
            if all(a < b for a, b in zip(low, high)):
                content = numpy.frombuffer(self.chunk_bytes(chunk), record.numpy).reshape(
                    chunk.sizes
                )
                inside = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offsets))
                result[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, begins))] = content[
                    inside
                ]
        return result

    # -- Bytes of chunks

    def open_segment(self, number):
        where = f"segment {number:016x}"
        data = self.get(SEGMENTS + number.to_bytes(8, "big"))
        check(data is not None, self.where, None, f"there is no SegmentRecord of {where}")
        record = parse(data, "SegmentRecord", where)
        check(record.segment_id == number, where, None, "the SegmentRecord is of another segment")
        file = self.store.file(f"segments/{record.epoch:08x}-{number:016x}.seg")
        check(
            file.size == record.file_bytes,
            file.name,
            None,
            f"has {file.size} bytes instead of {record.file_bytes}",
        )
        return file, record

    def extent_bytes(self, extent):
        file, _ = self.segment(extent.segment_id)
        check(
            4096 <= extent.offset_bytes,
            file.name,
            extent.offset_bytes,
            "an extent is in the header",
        )
        return file.read(extent.offset_bytes, extent.length_bytes)

    def chunk_bytes(self, chunk):
        """The bytes of a chunk, compared with its digest."""
        if chunk.encoding == 2:
            data = bytes(chunk.nbytes)
        else:
            data = b"".join(self.extent_bytes(extent) for extent in chunk.extents)
        for delta in chunk.deltas or []:
            data = apply_delta(self.extent_bytes(delta), data, f"a delta of {chunk.where}")
        check(tree_digest(data) == digest_of(chunk.digest), chunk.where, None, "wrong digest")
        return data


def check_chunk(chunk, where):
    """The rules for the extents and deltas of a ChunkRecord (table.md, Records)."""
    extents, deltas = chunk.extents or [], chunk.deltas or []
    if chunk.version == 1:
        check(chunk.extent and not extents, where, None, "has no extent, or several")
        extents = [chunk.extent]
    else:
        check(
            not chunk.extent and len(extents) >= (2 if chunk.version == 2 else 1),
            where,
            None,
            "has no extents",
        )
    check(
        chunk.encoding == max(chunk.version - 2, 0),
        where,
        None,
        f"encoding {chunk.encoding} is unknown",
    )
    check(
        chunk.digest and bool(deltas) == (chunk.encoding > 0) and len(deltas) <= MAX_DELTAS,
        where,
        None,
        "has no digest, or another number of deltas",
    )
    check(
        not deltas
        or (
            chunk.nbytes <= MAX_WITH_DELTAS
            and sum(delta.length_bytes for delta in deltas) <= MAX_WITH_DELTAS
        ),
        where,
        None,
        "is too long for deltas",
    )
    check(
        sum(extent.length_bytes for extent in extents) == chunk.nbytes
        and len(extents) <= -(-chunk.nbytes // PAGE),
        where,
        None,
        "its extents have another length",
    )
    check(
        all(extent.length_bytes % PAGE == 0 for extent in extents[:-1]),
        where,
        None,
        "an extent does not end with a page",
    )
    if chunk.encoding == 2:
        check(
            len(extents) == 1 and extents[0].segment_id == extents[0].offset_bytes == 0,
            where,
            None,
            "a compressed chunk has an extent",
        )
    chunk.extents = extents


# ---- Verification -------------------------------------------------------------------------------

SUMMARY = (
    "step generation created_unix_ns world_size attempt base_step tensor_count value_count "
    "chunk_count reused_chunk_count logical_bytes written_bytes structure rewritten metrics note"
).split()


class Verification:
    """Reads every byte of the objects that the newest root reaches, and of all roots."""

    def __init__(self, store):
        self.store, self.errors, self.done, self.segments = store, [], set(), {}
        for number in store.root_numbers():
            self.attempt(store.read_root, number)
        for tag, step in store.tags.items():
            self.attempt(check, step in store.entries, "root", None, f"tag {tag!r} is of no step")
        for entry in store.entries.values():
            self.attempt(self.verify_step, entry)
        for name, (file, record) in sorted(self.segments.items()):
            self.attempt(verify_segment, file, record, store.uuid)

    def attempt(self, function, *arguments):
        """Continues with the next object after an error."""
        try:
            return function(*arguments)
        except FormatError as error:
            self.errors.append(error)

    def verify_step(self, entry):
        step = Step(self.store, entry)
        for i, table in enumerate(step.tables):
            if self.is_new(table.name):
                self.attempt(table.verify)
                self.attempt(self.verify_next_tables, table, entry.tables[i + 1 :])
        record = parse(step.tables[0].get(STEPS) or b"", "StepSummary", step.where)
        for field in (*SUMMARY, "parent", "run"):
            check(
                getattr(record, field) == getattr(entry, field),
                step.where,
                None,
                f"{field} of its record is not the one of its entry",
            )
        leaves = dict((name, kind) for kind, name in step.leaves())
        check(
            len(leaves) == entry.tensor_count + entry.value_count,
            step.where,
            None,
            "has another number of leaves",
        )
        uses, chunk_count = collections.Counter(), 0
        for key, data in step.scan(TENSORS):
            name = key[1:-1].decode("utf-8", "surrogatepass")
            where = f"tensor {name!r}"
            tensor = step.check_tensor(parse(data, "TensorRecord", where), where)
            check(
                key[-1:] == b"\0" and (tensor.hidden or leaves.pop(name, VALUE) != VALUE),
                where,
                None,
                "is not in the structure",
            )
            chunks = self.attempt(step.chunks, name, tensor) or []
            if tensor.alias_of is not None:
                self.attempt(step.tensor, name, tuple(slice(0, 0) for _ in tensor.shape))
            chunk_count += len(chunks)
            for _, chunk in chunks:
                for extent in (chunk.extents if chunk.encoding != 2 else []) + (chunk.deltas or []):
                    uses[extent.segment_id] += extent.length_bytes
                self.attempt(self.verify_chunk, step, chunk)
        for key, data in step.scan(VALUES):
            name = key[1:-1].decode("utf-8", "surrogatepass")
            check(
                leaves.pop(name, None) == VALUE, f"value {name!r}", None, "is not in the structure"
            )
            step.value(name)
        check(not leaves, step.where, None, f"leaves are missing: {list(leaves)[:3]}")
        found = sum(1 for _ in step.scan(CHUNKS))
        check(
            found == chunk_count == entry.chunk_count,
            step.where,
            None,
            f"has {found} chunks, {chunk_count} of tensors, and {entry.chunk_count} in its entry",
        )
        self.verify_uses(step, uses)

    def is_new(self, key):
        if key in self.done:
            return False
        self.done.add(key)
        return True

    def verify_next_tables(self, table, refs):
        """The last record of a table names those after it (table.md, The last record)."""
        expected = [len(refs)]
        for ref in refs:
            expected += [ref.id.id, ref.id.epoch, ref.file_bytes, ref.record_count, ref.digest]
        expected = struct.pack(f"<{len(expected)}Q", *expected)
        check(table.get(NEXT_TABLES) == expected, table.name, None, "names other tables after it")

    def verify_chunk(self, step, chunk):
        places = tuple(
            (x.segment_id, x.offset_bytes, x.length_bytes)
            for x in chunk.extents + (chunk.deltas or [])
        )
        for extent in (chunk.extents if chunk.encoding != 2 else []) + (chunk.deltas or []):
            file, _ = step.segment(extent.segment_id)
            count = -(-extent.length_bytes // PAGE)
            if self.is_new(
                (
                    file.name,
                    extent.offset_bytes,
                    extent.length_bytes,
                    extent.page_digests_offset_bytes,
                )
            ):
                digests = file.read(extent.page_digests_offset_bytes, 8 * count)
                check(
                    digests == page_digests(step.extent_bytes(extent)),
                    file.name,
                    extent.offset_bytes,
                    "pages have other digests",
                )
        if self.is_new((places, digest_of(chunk.digest))):
            step.chunk_bytes(chunk)

    def verify_uses(self, step, uses):
        """The records of segments and the usage are those of the chunks (table.md, root.md)."""
        for key, _ in step.scan(SEGMENTS):
            number = int.from_bytes(key[1:], "big")
            file, record = step.segment(number)
            check(number in uses, step.where, None, f"uses no bytes of {file.name}")
            self.segments.setdefault(file.name, (file, record))
        if step.entry.usage_in_tables:
            found = {}
            for key, value in step.scan(USAGE):
                check(len(value) == 16, step.where, None, "a usage has another length")
                found[int.from_bytes(key[1:], "big")] = (u64(value, 8), u64(value, 0))
            check(not step.entry.usage, step.where, None, "has two lists of usage")
        else:
            found = {use.id: (use.epoch, use.live_bytes) for use in step.entry.usage or []}
        expected = {
            number: (step.segment(number)[1].epoch, count) for number, count in uses.items()
        }
        check(found == expected, step.where, None, "the usage is not what its chunks use")


def verify_segment(file, record, uuid):
    """Each byte of a segment (segment.md)."""
    where, size = file.name, file.size
    check(size % 4096 == 0 and size >= 8192, where, None, "the file has another length")
    header, trailer = file.read(0, 4096), file.read(size - 80, 80)
    check(
        digest64(header[:4088]) == u64(header, 4088), where, 4088, "the header has a wrong checksum"
    )
    expected = struct.pack(
        "<8sII16sQQII",
        b"CAIRNSEG",
        2,
        4096,
        uuid,
        record.segment_id,
        record.step,
        record.rank,
        record.epoch,
    )
    check(
        header[:56] == expected and not any(header[64:4088]),
        where,
        0,
        "the header has other fields",
    )
    check(
        digest64(trailer[:72]) == u64(trailer, 72),
        where,
        size - 8,
        "the trailer has a wrong checksum",
    )
    magic, version, zero, payload_end, digests_at, digest_count, footer_length, *sums, number = (
        struct.unpack("<8sII7Q", trailer[:72])
    )
    check(
        magic == b"CAIRNEND" and version == 2 and zero == 0 and number == record.segment_id,
        where,
        size - 80,
        "the trailer has other fields",
    )
    footer_at = digests_at + 8 * digest_count
    check(
        4096 <= payload_end <= digests_at <= footer_at <= footer_at + footer_length <= size - 80,
        where,
        size - 64,
        "the parts are not in order",
    )
    digests, footer = file.read(digests_at, 8 * digest_count), file.read(footer_at, footer_length)
    check(
        sums == [digest64(digests), digest64(footer)],
        where,
        size - 32,
        "digests or footer are damaged",
    )
    check(
        sums == [record.page_digests_checksum, record.footer_digest],
        where,
        size - 32,
        "the SegmentRecord has other checksums",
    )
    for begin, end in ((payload_end, digests_at), (footer_at + footer_length, size - 80)):
        check_zeros(file, begin, end)
    footer = parse(footer, "SegmentFooter", where)
    check(
        footer.segment_id == record.segment_id
        and footer.step == record.step
        and footer.rank == record.rank,
        where,
        footer_at,
        "the footer is of another segment",
    )
    ranges = set()
    for entry in footer.entries or []:
        if entry.column == CHUNKS[0]:
            chunk = parse(entry.value or b"", "ChunkRecord", where)
            for extent in (
                [chunk.extent] if chunk.extent else (chunk.extents or []) + (chunk.deltas or [])
            ):
                if extent.segment_id == record.segment_id:
                    ranges.add(
                        (extent.offset_bytes, extent.length_bytes, extent.page_digests_offset_bytes)
                    )
    at, count = 4096, 0
    for offset, length, place in sorted(ranges):
        check(at <= offset and offset + length <= payload_end, where, offset, "extents overlap")
        check_zeros(file, at, offset)
        at = offset + length
        for page in range(0, length, PAGE):
            data = file.read(offset + page, min(PAGE, length - page))
            index = place + page // PAGE * 8 - digests_at
            check(
                0 <= index <= len(digests) - 8 and digest64(data) == u64(digests, index),
                where,
                offset + page,
                "the page is damaged",
            )
            count += 1
    check_zeros(file, at, payload_end)
    check(count == digest_count, where, at, "there are digests that no chunk has")
    check(
        sum(length for _, length, _ in ranges) == record.payload_bytes,
        where,
        None,
        "the SegmentRecord has another length",
    )


def check_zeros(file, begin, end):
    for at in range(begin, end, 1 << 20):
        check(not any(file.read(at, min(1 << 20, end - at))), file.name, at, "a gap is not zero")


# ---- Command line -------------------------------------------------------------------------------


def parse_slices(text):
    """ "0:2,3:" as slices."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d*):(\d*)", part.strip())
        if not match:
            raise argparse.ArgumentTypeError(f"{part!r} is not BEGIN:END")
        found.append(slice(*(int(number) if number else None for number in match.groups())))
    return tuple(found)


def describe_step(entry, tags):
    found = {field: getattr(entry, field) for field in SUMMARY}
    found["structure"] = f"{digest_of(entry.structure):032x}"
    found["metrics"] = {
        metric.name: repr(struct.unpack("<d", struct.pack("<Q", metric.bits))[0])
        for metric in entry.metrics or []
    }
    return found | {"tags": tags}


def describe_leaf(step, kind, name):
    if kind == VALUE:
        value = step.value(name)
        return {"key": name, "type": type(value).__name__, "value": repr(value)}
    record = step.tensor_record(name)
    return {
        "key": name,
        "type": "tensor",
        "dtype": record.dtype_name,
        "shape": record.shape,
        "nbytes": record.nbytes,
        "alias_of": record.alias_of,
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description="Reads and verifies a store of Cairn in a directory."
    )
    parser.add_argument(
        "store", metavar="STORE[@STEP]", help="a directory, and a step, a tag or latest"
    )
    parser.add_argument("--key", help="print this tensor or value")
    parser.add_argument(
        "--slice", type=parse_slices, default=(), help="of a tensor, such as 0:2,3:"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read every byte and print what is damaged"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; bytes of tensors as hex")
    options = parser.parse_args(arguments)
    directory, at, name = options.store.rpartition("@")
    if not at or os.path.exists(options.store):
        directory, name = options.store, None
    try:
        store = Store(directory)
        if options.verify:
            errors = store.verify()
            report = {"steps": len(store.entries), "errors": [str(error) for error in errors]}
            lines = report["errors"] or [f"{len(store.entries)} steps are intact"]
        elif name is None and not options.key:
            errors, tags = [], collections.defaultdict(list)
            for tag, number in store.tags.items():
                tags[number].append(tag)
            report = [describe_step(entry, tags[number]) for number, entry in store.entries.items()]
            lines = [
                f"{x['step']}  {x['tensor_count']} tensors  {x['logical_bytes']} bytes  "
                f"{' '.join(x['tags'])}"
                for x in report
            ]
        elif not options.key:
            errors, step = [], store.step(name)
            report = [describe_leaf(step, kind, key) for kind, key in step.leaves()]
            lines = [
                f"{x['key']}  {x.get('dtype', x['type'])} {x.get('shape', x.get('value'))}"
                for x in report
            ]
        else:
            errors, found = [], store.step(name or "latest").read(options.key, options.slice)
            report, lines = {"key": options.key, "value": repr(found)}, [str(found)]
            if isinstance(found, numpy.ndarray):
                report = {"key": options.key, "shape": found.shape, "hex": found.tobytes().hex()}
    except FormatError as error:
        errors = [error]
        report, lines = {"errors": [str(error)]}, [f"error: {error}"]
    print(json.dumps(report, indent=1) if options.json else "\n".join(lines))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
