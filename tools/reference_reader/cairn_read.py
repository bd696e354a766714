#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads and verifies stores of Cairn without Cairn: the executable specification of its format.

This file was written from the pages in docs/format/ and the schemas in schema/ alone, and each part
names its page. It reads a store in a directory, on any operating system and byte order, needs only
numpy, xxhash and zstandard, and is slow where that makes it shorter.

    python cairn_read.py STORE                        the steps
    python cairn_read.py STORE@STEP                   the keys (STEP: a number, a tag or latest)
    python cairn_read.py STORE@STEP --key K --slice 0:2,3:
    python cairn_read.py STORE --verify               every byte; exit status 1 if damaged

A store is treated as hostile input. Whatever does not follow the pages raises FormatError; a length
is compared with the bytes that exist before memory is allocated; nothing recurses without a limit;
and a pickle is returned as bytes and never executed.

From top to bottom: errors, numbers and files; FlatBuffers; tables (SST); roots and pages; deltas;
steps, tensors and values; verification; the command line.
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

FORMAT, KNOWN_FEATURES = 3, frozenset()  # store.md, compatibility.md
PAGE = 65536  # bytes of a payload that have one digest (digest.md)
MAX_RECORD = 64 << 20  # bytes of the record of a root or a page; these limits are in limits.md
MAX_WITH_DELTAS = 1 << 30  # bytes of a chunk with deltas, and of its deltas
MAX_DELTAS, MAX_TABLES, MAX_LEVELS, MAX_FQN = 64, 8, 1000, 65536

class FormatError(Exception):
    """The store is damaged, or is not one that the pages describe."""

    def __init__(self, where, what, offset=None):
        self.where, self.what, self.offset = where, what, offset
        super().__init__(f"{where}{'' if offset is None else f', byte {offset}'}: {what}")

def check(condition, where, what, offset=None):
    if not condition:
        raise FormatError(where, what, offset)


# ---- Numbers, digests (digest.md), files and zstd frames ----------------------------------------

digest64 = xxhash.xxh3_64_intdigest

def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")

def u64(data, at):
    return int.from_bytes(data[at : at + 8], "little")

def varint(data, at, where):
    """A LEB128 number of 64 bits in its shortest form, and the position after it."""
    value = shift = 0
    while True:
        check(at < len(data) and shift < 64, where, "a varint does not end", at)
        byte = data[at]
        value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        if byte < 0x80:
            check((byte or shift == 7) and value < 1 << 64, where, "a varint has another form", at)
            return value, at

def page_digests(data):
    pages = (memoryview(data)[at : at + PAGE] for at in range(0, len(data), PAGE))
    return b"".join(digest64(page).to_bytes(8, "little") for page in pages)

def tree_digest(data):
    """The page-tree digest: XXH3-128 of the digests of the pages and the length."""
    return xxhash.xxh3_128_intdigest(page_digests(data) + len(data).to_bytes(8, "little"))

def number_of(digest):
    """A Digest of a schema as one number."""
    return digest and digest.hi << 64 | digest.lo

class File:
    """An object of the store. Only ranges that exist are read."""

    def __init__(self, directory, name):
        self.name, self.path = name, os.path.join(directory, *name.split("/"))
        try:
            self.size = os.stat(self.path).st_size
        except OSError as error:
            raise FormatError(name, f"cannot be read: {error.strerror}") from None

    def read(self, at, length):
        check(0 <= at and 0 <= length <= self.size - at, self.name, "ends before what is read", at)
        try:
            with open(self.path, "rb") as file:
                file.seek(at)
                data = file.read(length)
        except OSError as error:
            raise FormatError(self.name, f"cannot be read: {error.strerror}", at) from None
        check(len(data) == length, self.name, "cannot be read completely", at)
        return data

    def pieces(self, begin, end):
        """The bytes of a range, in pieces of 1 MiB, with their positions."""
        for at in range(begin, end, 1 << 20):
            yield at, self.read(at, min(1 << 20, end - at))

    def digest(self):
        state = xxhash.xxh3_64()
        for _, piece in self.pieces(0, self.size):
            state.update(piece)
        return state.intdigest()

def decompress(data, length, where, at, states_length=True):
    """The contents of `data`, which must be one zstd frame of `length` bytes."""
    # No frame contains more than 128 KiB for each 4 bytes (root.md, Frame).
    check(length <= (len(data) // 4 + 1) << 17, where, "an impossible length", at)
    try:
        stated = zstandard.frame_content_size(data)
        check(stated == length or stated < 0 and not states_length, where,
              f"the zstd frame has {stated} bytes instead of {length}", at)
        found = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(
            data, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(where, f"not a zstd frame: {error}", at) from None
    check(len(found) == length, where, "a zstd frame has another length", at)
    return found

def read_frame(file, magic):
    """The record of a root or page (root.md, Frame)."""
    check(24 <= file.size <= 2 * MAX_RECORD, file.name, f"has {file.size} bytes")
    data = file.read(0, file.size)
    check(digest64(data[:-8]) == u64(data, len(data) - 8), file.name, "wrong checksum")
    check(data[:4] == magic and u32(data, 4) == 1, file.name, "unknown magic or version", 0)
    check(u32(data, 8) <= MAX_RECORD and u32(data, 12) == len(data) - 24, file.name, "lengths", 8)
    return decompress(data[16:-8], u32(data, 8), file.name, 16)


# ---- FlatBuffers (schema/*.fbs) -----------------------------------------------------------------

# Structs with their layout; tables with their fields in the order of their ids. "=1" is a default
# other than 0, "?" a number that may be absent, and "[T]" a vector.
STRUCTS = {
    "Digest": ("<QQ", "lo hi"),
    "Extent": ("<QQQQ", "segment_id offset_bytes length_bytes page_digests_offset_bytes"),
    "ChunkStatistics": ("<dddQQQ", "min max mean zeros nans infs"),
    "ObjectId": ("<IIQ", "epoch id_tail id"),
    "SegmentUse": ("<IIQQ", "epoch id_tail id live_bytes"),
}
TABLES = """
Metric name:str bits:u64
ChunkRecord version:u8=1 encoding:u8 sizes:[u64] extent:Extent digest:Digest since_step:u64
  extents:[Extent] deltas:[Extent] statistics:ChunkStatistics
TensorRecord version:u8=1 dtype:u8 shape:[u64] nbytes:u64 chunk_count:u64 alias_of:str
  alias_offset_bytes:u64 alias_strides:[u64] hidden:u8
ValueRecord version:u8=1 kind:u8 integer:i64 bytes:[u8]
ApplicationRecord version:u8=1 data:[u8]
Extension name:str data:[u8]
StructureRecord version:u8=1 kinds:[u8] key_kinds:[u8] keys:[str] child_counts:[u32]
  extensions:[Extension] forms:[u8]
ParentStep step:u64 attempt:str
StepSummary version:u8=1 step:u64 generation:u64 created_unix_ns:i64 world_size:u32 attempt:str
  base_step:u64? tensor_count:u64 value_count:u64 chunk_count:u64 reused_chunk_count:u64
  logical_bytes:u64 written_bytes:u64 structure:Digest rewritten:u64 metrics:[Metric] note:str
  parent:ParentStep run:[u8]
SegmentRecord version:u8=1 segment_id:u64 epoch:u32 step:u64 rank:u32 file_bytes:u64
  payload_bytes:u64 chunk_count:u64 footer_digest:u64 page_digests_checksum:u64 id_tail:u32
FooterEntry column:u8 key:[u8] value:[u8]
SegmentFooter version:u8=1 segment_id:u64 store_uuid:[u8] step:u64 rank:u32 attempt:str
  entries:[FooterEntry]
TableRef id:ObjectId file_bytes:u64 record_count:u64 digest:u64
StepEntry summary:StepSummary tables:[TableRef] usage:[SegmentUse] usage_in_tables:u8
StepsPage version:u8=1 steps:[StepEntry]
PageRef id:ObjectId file_bytes:u64 digest:u64 steps:[u8]
Writer host:str pid:u32 session:str since_unix_ns:i64
RemovedObject name:str since_unix_ns:i64 file_bytes:u64
Tag name:str step:u64
KeepBest metric:str count:u64 highest:u8
RetentionPolicy keep_last:u64 keep_every:u64 keep_best:[KeepBest]
RootRecord version:u8=1 number:u64 commit_id:[u8] store_uuid:[u8] epoch:u32 writer:Writer
  created_unix_ns:i64 recent:[StepEntry] pages:[PageRef] removed:[RemovedObject]
  kept_before_epoch:u32 tags:[Tag] retention:RetentionPolicy compress:u8 predecessor:[u8]
  read_features:[str] write_features:[str]
""".replace("\n  ", " ")
TABLES = {line.split()[0]: line.split()[1:] for line in TABLES.strip().split("\n")}
IDENTIFIERS = {
    "StepSummary": b"CNST", "TensorRecord": b"CNTE", "ChunkRecord": b"CNCH", "StepsPage": b"CNPS",
    "StructureRecord": b"CNTR", "SegmentRecord": b"CNSG", "SegmentFooter": b"CNSF",
    "RootRecord": b"CNRO", "ValueRecord": b"CNVA", "ApplicationRecord": b"CNAP",
}  # fmt: skip
VERSIONS = {"ChunkRecord": 4}  # the highest known version; 1 for all others
SCALARS = {"u8": "<B", "u32": "<I", "u64": "<Q", "i64": "<q"}

class FlatBuffer:
    """Reads a table and all that it refers to, and checks each position before it uses it.

    No two objects share bytes in what Cairn writes. So no more bytes are read than the buffer has,
    whatever its offsets are, which bounds memory and time. The schema bounds the depth.
    """

    def __init__(self, data, where):
        self.data, self.where, self.unread = data, where, len(data)

    def range(self, at, length, align):
        """`at`, if so many bytes are there."""
        self.unread -= length
        check(at % align == 0 and at + length <= len(self.data) and self.unread >= 0, self.where,
              f"{length} bytes of a FlatBuffer are outside of it, shared or not aligned", at)
        return at

    def value(self, at, kind):
        """The field or element of a type, whose inline part is at `at`."""
        if kind in SCALARS:
            size = struct.calcsize(SCALARS[kind])
            return struct.unpack_from(SCALARS[kind], self.data, self.range(at, size, size))[0]
        if kind in STRUCTS:
            layout, names = STRUCTS[kind]
            found = struct.unpack_from(layout, self.data,
                                       self.range(at, struct.calcsize(layout), 8))
            return SimpleNamespace(**dict(zip(names.split(), found, strict=True)))
        distance = self.value(at, "u32")
        check(0 < distance < 1 << 31, self.where, "an offset does not point forward", at)
        at += distance
        if kind in TABLES:
            return self.table(at, kind)
        count, begin = self.value(at, "u32"), at + 4
        if kind == "str":
            text = self.data[self.range(begin, count + 1, 1) : begin + count]
            check(self.data[begin + count] == 0, self.where, "a text does not end", begin + count)
            return decode(text, self.where)
        element = kind[1:-1]
        if element == "u8":
            return bytes(self.data[self.range(begin, count, 1) : begin + count])
        size = struct.calcsize(SCALARS.get(element, STRUCTS.get(element, ("<I",))[0]))
        check(count * size <= self.unread, self.where, f"a vector has {count} elements", at)
        return [self.value(begin + i * size, element) for i in range(count)]

    def table(self, at, name):
        self.range(at, 4, 4)
        vtable = at - struct.unpack_from("<i", self.data, at)[0]
        check(0 <= vtable <= len(self.data) - 4 and vtable % 2 == 0, self.where, "no vtable", at)
        vtable_size, size = struct.unpack_from("<HH", self.data, vtable)
        check(4 <= vtable_size <= len(self.data) - vtable and vtable_size % 2 == 0
              and 4 <= size <= len(self.data) - at, self.where, "a wrong vtable", vtable)
        found = SimpleNamespace()
        for i, field in enumerate(TABLES[name]):
            field, _, kind = field.partition(":")
            kind, _, default = kind.partition("=")
            place = u32(self.data, vtable + 4 + 2 * i) & 0xFFFF if 6 + 2 * i <= vtable_size else 0
            check(place < size, self.where, "a field is outside of its table", vtable + 4 + 2 * i)
            default = int(default or 0) if kind in SCALARS else None
            setattr(found, field, self.value(at + place, kind.rstrip("?")) if place else default)
        return found

def decode(text, where):
    """UTF-8, in which lone surrogates are encoded as if they were characters (keys.md)."""
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise FormatError(where, "a text is not UTF-8") from None

def encode(text):
    return text.encode("utf-8", "surrogatepass")

def parse(data, name, where):
    """A record: a verified buffer of a known version (table.md, Records)."""
    check(data and data[4:8] == IDENTIFIERS[name], where, f"there is no {name}")
    buffer = FlatBuffer(data, where)
    check(4 <= u32(data, 0) < 1 << 31, where, "no FlatBuffer", 0)
    record = buffer.table(u32(data, 0), name)
    check(1 <= record.version <= VERSIONS.get(name, 1), where, "an unknown version")
    return record


# ---- Tables (sst.md, table.md) ------------------------------------------------------------------

STEPS, TENSORS, CHUNKS, VALUES, STRUCTURES = (bytes([number]) for number in range(5))
APPLICATION, SEGMENTS, USAGE, NEXT_TABLES = (bytes([number]) for number in (64, 253, 254, 255))
FOOTER, TRAILER, SUFFIX = 53, 5, bytes([1, 0, 0, 0, 0, 0, 0, 0])
PROPERTIES = {
    b"block.based.table.index.type": bytes([2, 0, 0, 0]), b"merge.operands": b"\0",
    b"comparator": b"leveldb.BytewiseComparator", b"num.range-deletions": b"\0",
    b"deleted.keys": b"\0", b"filter.size": b"\0", b"external_sst_file.global_seqno": bytes(8),
    b"external_sst_file.version": bytes([2, 0, 0, 0]), b"index.key.is.user.key": b"\1",
    b"index.value.is.delta.encoded": b"\1",
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
        check(self.file.size == length and length > FOOTER, name, f"has {self.file.size} bytes")
        check(self.file.digest() == digest, name, "wrong digest of the complete table")
        footer = self.file.read(length - FOOTER, FOOTER)
        self.metaindex, at = handle(footer, 1, name)
        self.top_place, at = handle(footer, at, name)
        check(footer[0] == 4 and not any(footer[at:41]) and at <= 41
              and footer[41:] == bytes.fromhex("05000000f7cff485b741e288"), name, "wrong footer")
        metaindex = self.entries(self.metaindex, 1)
        check([key for key, _ in metaindex] == [b"rocksdb.properties"], name, "unknown blocks")
        self.properties_place, _ = handle(metaindex[0][1], 0, name)
        properties = dict(self.entries(self.properties_place, None))
        for key, value in PROPERTIES.items():
            check(properties.get(b"rocksdb." + key) == value, name, f"another {key.decode()}")
        self.count = varint(properties.get(b"rocksdb.num.entries", b""), 0, name)[0]
        check(self.count == count, name, f"has {self.count} records instead of {count}")
        self.records = functools.lru_cache(64)(self.read_records)
        self.index = functools.lru_cache(64)(self.read_index)

    def content(self, place, may_compress):
        """The bytes of a block (sst.md, Blocks and their trailers)."""
        offset, length = place
        check(sum(place) + TRAILER <= self.file.size - FOOTER, self.name, "no such block", offset)
        data = self.file.read(offset, length + TRAILER)
        data, kind, checksum = data[:length], data[length], u32(data, length + 1)
        found = (digest64(data) ^ kind * 0x6B9083D9) & 0xFFFFFFFF
        check(found == checksum, self.name, "a block has a wrong checksum", offset)
        if kind == 0:
            return data
        check(kind == 7 and may_compress, self.name, f"a block has compression {kind}", offset)
        expected, at = varint(data, 0, self.name)
        check(expected < 1 << 32, self.name, "a block is too long", offset)
        return decompress(data[at:], expected, self.name, offset + at)

    def entries(self, place, interval, kind="other"):
        """The entries of a block, with a restart point at each `interval`-th one."""
        data, where, base = self.content(place, kind == "records"), self.name, place[0]
        count = u32(data, len(data) - 4)
        end = len(data) - 4 - 4 * count
        check(count > 0 and end > 0, where, "a block has no restart points", base)
        found, restarts, at, key = [], [], 0, b""
        while at < end:
            begin, first = at, len(found) % interval == 0 if interval else not found
            shared, at = varint(data, at, where)
            added, at = varint(data, at, where)
            length, at = varint(data, at, where) if kind != "index" else (0, at)
            restarts += [begin] if first else []
            check(shared <= (0 if first else len(key)) and at + added + length <= end, where,
                  "an entry is longer than its block, or shares too much", base + begin)
            key, at = key[:shared] + data[at : at + added], at + added
            value, at = (handle(data, at, where) if kind == "index"
                         else (data[at : at + length], at + length))
            found.append((key, value))
        expected = b"".join(position.to_bytes(4, "little") for position in restarts)
        check(at == end and expected == data[end:-4], where, "wrong restart points", base)
        return found

    def read_records(self, place):
        """The keys of a block of records, ascending, and their values."""
        found = self.entries(place, 16, "records")
        check(all(key[8 - 16 :] == SUFFIX and len(key) > 8 for key, _ in found), self.name,
              "a key has another suffix", place[0])
        return self.ascending([(key[:-8], value) for key, value in found], place)

    def read_index(self, place):
        return self.ascending(self.entries(place, 1, "index"), place)

    def ascending(self, found, place):
        keys, values = [key for key, _ in found], [value for _, value in found]
        check(all(map(lambda a, b: a < b, keys, keys[1:])), self.name, "keys descend", place[0])
        return keys, values

    def get(self, key):
        """The value of a key: None if there is none, empty for a tombstone."""
        return next((value for found, value in self.scan(key) if found == key), None)

    def scan(self, prefix):
        """The keys and values whose keys begin with `prefix`, ascending."""
        top_keys, partitions = self.index(self.top_place)
        for partition in partitions[bisect.bisect_left(top_keys, prefix) :]:
            keys, blocks = self.index(partition)
            for place in blocks[bisect.bisect_left(keys, prefix) :]:
                found, values = self.records(place)
                for i in range(bisect.bisect_left(found, prefix), len(found)):
                    if not found[i].startswith(prefix):
                        return
                    yield found[i], values[i]

    def verify(self):
        """Reads all blocks and checks what single reads do not (sst.md, What a reader checks)."""
        expected, count, last, top = 0, 0, b"", self.index(self.top_place)
        for top_key, partition in zip(*top, strict=True):
            check(self.index(partition)[0][-1] == top_key, self.name, "another last key")
            for key, place in zip(*self.index(partition), strict=True):
                keys, _ = self.records(place)
                check(place[0] == expected and last < keys[0] + b"\0" * (not count)
                      and keys[-1] <= key, self.name, "a block is not where it should be", expected)
                last, count, expected = key, count + len(keys), sum(place) + TRAILER
        for place in (*top[1], self.top_place, self.properties_place, self.metaindex):
            check(place[0] == expected, self.name, "a gap between blocks", expected)
            expected = sum(place) + TRAILER
        check(expected == self.file.size - FOOTER, self.name, "a gap before the footer", expected)
        check(count == self.count, self.name, f"has {count} records instead of {self.count}")


# ---- The store, roots and pages (store.md, root.md) ---------------------------------------------

def object_name(id):
    """The name of a segment, a table or a page, without its folder and suffix."""
    return f"{id.epoch:08x}-{id.id:016x}{id.id_tail:08x}"

def epoch_and_tail(id):
    return id.epoch | id.id_tail << 32

def root_name(number):
    return f"roots/{2**64 - 1 - number:016x}.root"

def require_features(names):
    """Refuses a store that a reader must know features to read (compatibility.md)."""
    unknown = [name for name in names or [] if name not in KNOWN_FEATURES]
    check(not unknown, "the store", f"needs features that this reader does not know: {unknown}")

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

    def read_identity(self):
        """The uuid in CAIRN. Unknown lines are ignored."""
        file = File(self.directory, "CAIRN")
        text = file.read(0, min(file.size, 4097))
        body, _, last = text.rpartition(b"checksum ")
        check(last == b"%016x\n" % digest64(body) and file.size <= 4096, "CAIRN", "wrong checksum")
        lines = body.decode("ascii", "replace").split("\n")
        check(lines[0] == "cairn store", "CAIRN", "not a store", 0)
        check(lines[1] == f"format {FORMAT}", "CAIRN", f"{lines[1]!r} is not format {FORMAT}", 12)
        values = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines[:-1]}
        check(len(values) == len(lines) - 1 and not lines[-1], "CAIRN", "two lines have one name")
        check(re.fullmatch("[0-9a-f]{32}", values.get("uuid", "")), "CAIRN", "has no uuid")
        require_features(values.get("read-features", "").split())
        return bytes.fromhex(values["uuid"])

    def root_numbers(self):
        """The numbers of all names of roots, highest first."""
        try:
            names = os.listdir(os.path.join(self.directory, "roots"))
        except OSError as error:
            raise FormatError("roots", f"cannot be listed: {error.strerror}") from None
        names = [name for name in names if re.fullmatch(r"[0-9a-f]{16}\.root", name)]
        numbers = [2**64 - 1 - int(name[:16], 16) for name in names]
        return sorted((number for number in numbers if 0 < number < 2**63), reverse=True)

    def read_root(self, number):
        name = root_name(number)
        root = parse(read_frame(File(self.directory, name), b"CNRT"), "RootRecord", name)
        check(root.number == number, name, f"is root {root.number}")
        for field in (root.commit_id, root.store_uuid, root.predecessor or bytes(16)):
            check(field is not None and len(field) == 16, name, "an id has another length")
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
            check(number - 1 in numbers, root_name(number - 1),
                  f"does not exist, so root {number} may not be the newest")
            try:
                before = self.read_root(number - 1)
            except FormatError:
                return root  # a damaged predecessor counts as the right one
            if root.predecessor == before.commit_id:
                return root
        raise FormatError("roots", "there is no root of this store")

    def read_entries(self):
        """The entries of all steps by number."""
        found, recent = [], self.root.recent or []
        for ref in self.root.pages or []:
            steps, number, at = [], 0, 0
            while at < len(ref.steps or b""):
                distance, at = varint(ref.steps, at, "a reference to a page")
                check(distance or not steps, "a reference to a page", "steps do not ascend")
                number += distance
                steps.append(number)
            check(ref.id and steps, "a reference to a page", "it has no id or no steps")
            file = File(self.directory, f"pages/{object_name(ref.id)}.steps")
            check(file.size == ref.file_bytes and file.digest() == ref.digest, file.name,
                  "wrong length or digest of the page")
            page = parse(read_frame(file, b"CNPG"), "StepsPage", file.name).steps or []
            entries = {entry.summary and entry.summary.step: entry for entry in page}
            check(set(steps) <= set(entries), file.name, "steps are missing")
            found += [entries[step] for step in steps]
        found += recent
        for entry in found:
            check(entry.summary and entry.summary.structure and entry.tables
                  and len(entry.tables) <= MAX_TABLES and all(table.id for table in entry.tables),
                  "the newest root", "the entry of a step is incomplete")
        entries = {entry.summary.step: entry for entry in found}
        numbers = [entry.summary.step for entry in recent]
        check(len(entries) == len(found), "the newest root", "a step is listed twice")
        check(numbers == sorted(numbers) and max(entries, default=None) == (numbers or [None])[-1],
              "the newest root", "recent steps are not in order")
        return dict(sorted(entries.items()))

    def open_table(self, name, length, count, digest):
        return Table(self.directory, f"tables/{name}.sst", length, count, digest)

    def step(self, name="latest"):
        """A step, by its number, its tag or "latest"."""
        number = max(self.entries, default=None) if name == "latest" else self.tags.get(name, name)
        number = int(number) if re.fullmatch("[0-9]{1,20}", str(number)) else None
        check(number in self.entries, "the store", f"there is no step {name!r}")
        return Step(self, self.entries[number])

    def verify(self):
        """The errors in all objects that the store needs."""
        return Verification(self).errors


# ---- Deltas (delta.md) --------------------------------------------------------------------------

def read_streams(data, count, length, at, where):
    """The streams after the directory at `at`, of a chunk of `length` bytes."""
    begin, streams, total = at + 8 * count, [], 0
    for i in range(count):
        size, stored = u32(data, at + 8 * i), u32(data, at + 8 * i + 4)
        total += size if i else 0
        check(stored <= size and begin + stored <= len(data) and total <= length
              and (i or size == 5 * -(-length // PAGE)), where, "a stream has another size", begin)
        stream = data[begin : begin + stored]
        begin += stored
        if stored < size:
            stream = decompress(stream, size, where, begin, states_length=False)
        streams.append(numpy.frombuffer(stream, numpy.uint8))
    check(begin == len(data), where, "bytes after the last stream", begin)
    return streams

def unpack_symbols(stream, count, where):
    """`count` symbols of two bits, the first one in the lowest bits, as u64."""
    symbols = (stream[:, None] >> numpy.arange(0, 8, 2, dtype=numpy.uint8) & 3).reshape(-1)
    check(len(stream) == -(-count // 4) and not symbols[count:].any(), where, "wrong symbols")
    return symbols[:count].astype(numpy.uint64)

def apply_delta(data, base, where):
    """The version of a chunk that results from a delta and the version before it."""
    check(len(data) >= 16 and data[:5] == b"CDLT\1" and not any(data[6:8]), where, "not a delta", 0)
    size, length, pages = data[5], len(base), -(-len(base) // PAGE)
    check(size in (1, 2, 4, 8) and length % size == 0, where, "a wrong element", 5)
    check(u64(data, 8) == length, where, "the chunk has another length", 8)
    table, gaps, sparse, dense, large, raw, *planes = read_streams(
        data, 6 + size, length, 16 + 8 * pages, where)
    columns = table.reshape(5, pages).astype(numpy.int64)
    sparse_counts, dense_counts = columns[1] + 256 * columns[2], columns[3] + 256 * columns[4]
    # A gap ends with its first byte that is not 255.
    ends = numpy.flatnonzero(gaps != 255)
    check(len(ends) == sparse_counts.sum() and not any(gaps[-1:] == 255), where, "wrong positions")
    check(len({len(plane) for plane in planes}) == 1, where, "planes have different lengths")
    wide = numpy.stack(planes, axis=1).reshape(-1).view(f"<u{size}").astype(f"=u{size}")
    streams = {
        "gaps": 255 * numpy.diff(ends, prepend=-1) - 255 + gaps[ends], "raw": raw, "wide": wide,
        "sparse": unpack_symbols(sparse, int(sparse_counts.sum()), where),
        "dense": unpack_symbols(dense, int(dense_counts.sum()), where), "large": large,
    }  # fmt: skip
    used = collections.Counter()

    def take(name, count):
        """The next elements of a stream."""
        used[name] += count
        check(used[name] <= len(streams[name]), where, f"the stream {name} is too short")
        return streams[name][used[name] - count : used[name]]

    def differences(name, count, add):
        """The next values plus `add`, as differences: z maps 0, -1, 1, -2, 2 to 0, 1, 2, 3, 4."""
        values = take(name, count).copy()
        larger = numpy.flatnonzero(values == 3)
        more = take("large", len(larger))
        values[larger] += more
        values[larger[more == 255]] = big = take("wide", int((more == 255).sum()))
        check((big >= 258).all(), where, "a wide value is small")
        check((values < 2 ** (8 * size) - add).all(), where, "a difference is too large")
        values = (values + numpy.uint64(add)).astype(new.dtype)
        one = number(1)
        return values >> one ^ (~(values & one) + one)

    new = numpy.frombuffer(base, f"<u{size}").astype(f"=u{size}")
    number = new.dtype.type
    for i in range(pages):
        page, threshold = new[i * PAGE // size : (i + 1) * PAGE // size], int(columns[0, i])
        count, dense_count = int(sparse_counts[i]), int(dense_counts[i])
        check(threshold < 254 or count == dense_count == 0, where, f"page {i} has elements")
        if threshold == 255:
            page[:] = take("raw", len(page) * size).view(f"<u{size}")
        elif threshold == 254:
            rotated = take("wide", len(page))
            page[:] = rotated >> number(1) | rotated << number(8 * size - 1)
        else:
            is_dense = page << number(1) < number(threshold << 8 * (size - 1))
            places = numpy.cumsum(take("gaps", count) + 1) - 1
            check(is_dense.sum() == dense_count and not any(places[-1:] >= len(page))
                  and not is_dense[places].any(), where, f"page {i} has other elements")
            page[places] += differences("sparse", count, 1)
            page[is_dense] += differences("dense", dense_count, 0)
    check(all(used[name] == len(streams[name]) for name in streams), where, "a stream is too long")
    result = new.astype(f"<u{size}").tobytes()
    check(page_digests(result) == data[16 : 16 + 8 * pages], where, "a page has another digest", 16)
    return result


# ---- Steps: keys, values and tensors ------------------------------------------------------------

# dtypes.md: names by number, from 1 on, and how numpy shows an element. Others are shown as
# their bits.
DTYPES = [None] + [
    (name, numpy.dtype([("real", "<f2"), ("imag", "<f2")] if kind == "pair" else kind))
    for name, _, kind in (word.partition("=") for word in """
bool=|b1 uint8=|u1 int8=|i1 int16=<i2 int32=<i4 int64=<i8 uint16=<u2 uint32=<u4 uint64=<u8
float16=<f2 bfloat16=<u2 float32=<f4 float64=<f8 complex32=pair complex64=<c8 complex128=<c16
float8_e4m3fn=|u1 float8_e4m3fnuz=|u1 float8_e5m2=|u1 float8_e5m2fnuz=|u1 float8_e8m0fnu=|u1
float4_e2m1fn_x2=|u1 uint1=|u1 uint2=|u1 uint3=|u1 uint4=|u1 uint5=|u1 uint6=|u1 uint7=|u1 int1=|u1
int2=|u1 int3=|u1 int4=|u1 int5=|u1 int6=|u1 int7=|u1 bits8=|u1 bits16=<u2 bits1x8=|u1 bits2x4=|u1
bits4x2=|u1""".split())
]  # fmt: skip

# structure.fbs
DICT, ORDERED_DICT, COUNTER, LIST, TUPLE, TORCH_SIZE, TENSOR, ARRAY, SCALAR, VALUE = range(10)
ROOT, INDEX, STRING, INT, BOOL, NONE, FLOAT = range(7)
MARKS = ("", r"\I", "", r"\I", r"\B", r"\N", r"\F")

class Pickle(bytes):
    """A value that was pickled. It is data, and nothing here executes it."""

def read_value(record, where):
    """The Python object of a ValueRecord (value.fbs)."""
    kind, data = record.kind, record.bytes or b""
    check(kind <= 8 and len(data) == {4: 8, 5: 16}.get(kind, len(data)), where, "a wrong value")
    check(kind != 1 or record.integer in (0, 1), where, "a bool is neither 0 nor 1")
    return (
        lambda: None, lambda: bool(record.integer), lambda: record.integer,
        lambda: int.from_bytes(data, "little", signed=True), lambda: struct.unpack("<d", data)[0],
        lambda: complex(*struct.unpack("<dd", data)), lambda: decode(data, where), lambda: data,
        lambda: Pickle(data),
    )[kind]()  # fmt: skip

def read_key(kind, text, where):
    """The Python object that is the key of a dict (keys.md)."""
    try:
        if kind in (STRING, INT, FLOAT):
            return {STRING: str, INT: int, FLOAT: float}[kind](text)
        return {(BOOL, "True"): True, (BOOL, "False"): False, (NONE, "None"): None}[kind, text]
    except (KeyError, ValueError):
        raise FormatError(where, f"a key of kind {kind} is {text[:40]!r}") from None

def name_of_key(kind, text, form):
    """What a key contributes to an FQN (keys.md, Names)."""
    if form == 2:
        return text
    text = text.replace("\\", "\\\\")
    return MARKS[kind] + text.replace(".", "\\.") if form else text

class Step:
    """One step: its records are merged from its tables, of which the first with a key counts."""

    def __init__(self, store, entry):
        self.store, self.entry, self.summary = store, entry, entry.summary
        self.where = f"step {self.summary.step}"
        self.tables = [store.table(object_name(ref.id), ref.file_bytes, ref.record_count,
                                   ref.digest) for ref in entry.tables]
        self.segment = functools.lru_cache(1024)(self.open_segment)

    def get(self, key):
        """The record of a key, or None."""
        found = (table.get(key) for table in self.tables)
        return next((value for value in found if value is not None), None) or None

    def scan(self, prefix):
        """The records whose keys begin with `prefix`, without those that a tombstone removes."""
        streams = [((key, i, value) for key, value in table.scan(prefix))
                   for i, table in enumerate(self.tables)]
        last = None
        for key, _, value in heapq.merge(*streams):
            if key != last and value:
                yield key, value
            last = key

    def record(self, column, name, kind):
        return parse(self.get(column + encode(name) + b"\0"), kind, f"{self.where}, {name!r}")

    def applications(self):
        """The records of applications, by name."""
        records = ((key, parse(data, "ApplicationRecord", self.where))
                   for key, data in self.scan(APPLICATION))
        return {decode(key[1:], self.where): record.data or b"" for key, record in records}

    # -- The structure: a tree in preorder

    def nodes(self):
        """Each node in preorder: kind, kind and text of its key, number of children, and FQN."""
        data = self.get(STRUCTURES)
        record = parse(data, "StructureRecord", self.where)
        check(tree_digest(data) == number_of(self.summary.structure), self.where,
              "the StructureRecord has another digest")
        forms = bytes(len(record.kinds or b"")) if record.forms is None else record.forms
        vectors = [record.kinds, record.key_kinds, record.keys, record.child_counts, forms]
        check(all(vectors) and len({len(vector) for vector in vectors}) == 1, self.where,
              "the vectors of the StructureRecord have different lengths")
        parents, leaves = [[1, None]], set()  # children that are missing, and name; names
        for kind, key_kind, key, children, form in zip(*vectors, strict=True):
            while parents and not parents[-1][0]:
                parents.pop()
            check(parents and len(parents) <= MAX_LEVELS + 1, self.where, "too many nodes")
            parents[-1][0] -= 1
            prefix = parents[-1][1]
            check(kind <= VALUE and key_kind <= FLOAT and form <= 2
                  and (kind < TENSOR or not children) and (key_kind == ROOT) == (prefix is None),
                  self.where, "a node is not possible")
            name = name_of_key(key_kind, key, form)
            name = f"{prefix}.{name}" if len(parents) > 2 else name
            check(len(encode(name)) <= MAX_FQN, self.where, "a name is too long")
            check(kind < TENSOR or name not in leaves, self.where, f"two leaves are {name!r}")
            leaves |= {name} if kind >= TENSOR else set()
            parents.append([children, name])
            yield kind, key_kind, key, children, name
        check(not any(missing for missing, _ in parents), self.where, "nodes are missing")

    def leaves(self):
        """Kind and FQN of each leaf."""
        return ((kind, name) for kind, _, _, _, name in self.nodes() if kind >= TENSOR)

    def keys(self):
        return [name for _, name in self.leaves()]

    def state(self):
        """The complete state. Tensors that share memory are views of one array."""
        payloads, stack = {}, []  # containers: kind, its key, number of children, children
        for kind, key_kind, key, count, name in self.nodes():
            stack.append((kind, (key_kind, key), count, []))
            item = self.leaf(kind, name, payloads) if kind >= TENSOR else None
            while stack and len(stack[-1][3]) == stack[-1][2]:
                kind, key, _, items = stack.pop()
                item = item if kind >= TENSOR else self.container(kind, items)
                if stack:
                    stack[-1][3].append((*key, item))
        return item

    def container(self, kind, items):
        if kind >= LIST:
            check(all(key_kind == INDEX and key == str(i) for i, (key_kind, key, _)
                      in enumerate(items)), self.where, "a list has another key")
            return (list if kind == LIST else tuple)(item for _, _, item in items)
        found = {read_key(key_kind, key, self.where): item for key_kind, key, item in items}
        return (dict, collections.OrderedDict, collections.Counter)[kind](found)

    def leaf(self, kind, name, payloads):
        if kind == VALUE:
            return self.value(name)
        array = self.tensor(name, (), payloads)
        return array[()] if kind == SCALAR else array

    def value(self, name):
        return read_value(self.record(VALUES, name, "ValueRecord"), f"{self.where}, {name!r}")

    def read(self, name, index=()):
        """A leaf: a value, or a tensor or the part of it that slices with steps of 1 give."""
        is_tensor = self.get(TENSORS + encode(name) + b"\0") is not None
        return self.tensor(name, index) if is_tensor else self.value(name)

    # -- Tensors

    def tensor_record(self, name):
        record, where = self.record(TENSORS, name, "TensorRecord"), f"{self.where}, {name!r}"
        check(0 < record.dtype < len(DTYPES), where, f"dtype {record.dtype} is unknown")
        record.name, record.where = name, where
        record.shape, record.strides = record.shape or [], record.alias_strides or []
        record.dtype_name, record.numpy = DTYPES[record.dtype]
        check(max(record.nbytes, *record.shape, 0) < 2**63 and len(record.shape) <= 64
              and math.prod(record.shape) * record.numpy.itemsize == record.nbytes, where,
              "the shape and the number of bytes do not agree")
        # numpy needs this also if there are no elements.
        check(math.prod(filter(None, record.shape)) * record.numpy.itemsize < 2**63, where,
              "too large for this reader")
        check(record.alias_of is None or len(record.strides) == len(record.shape)
              and record.alias_offset_bytes < 2**63, where, "a wrong alias")
        return record

    def tensor(self, name, index=(), payloads=None):
        record = self.tensor_record(name)
        if record.alias_of is not None:
            return self.alias(record, payloads)[tuple(index)]
        if payloads is not None and name in payloads:
            return payloads[name]
        ranges = [part.indices(size)[:2] for part, size in zip(index, record.shape)]
        ranges += [(0, size) for size in record.shape[len(ranges) :]]
        chunks = self.chunks(record)
        for _, chunk in chunks:  # before memory is allocated
            for extent in chunk.extents + chunk.deltas:
                self.extent_file(extent)
        shape = [max(end - begin, 0) for begin, end in ranges]
        result = numpy.empty(shape, record.numpy)
        for offsets, chunk in chunks:
            low = [max(begin, offset) for (begin, _), offset in zip(ranges, offsets)]
            high = [min(end, offset + size) for (_, end), offset, size
                    in zip(ranges, offsets, chunk.sizes)]
            if all(map(lambda a, b: a < b, low, high)):
                data = numpy.frombuffer(self.chunk_bytes(chunk), record.numpy).reshape(chunk.sizes)
                inside = tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offsets))
                place = tuple(slice(a - o, b - o) for a, b, (o, _) in zip(low, high, ranges))
                result[place] = data[inside]
        if payloads is not None:
            payloads[name] = result
        return result

    def alias(self, record, payloads=None):
        """A view of the tensor that has the bytes (table.md, Aliases)."""
        owner, item = self.tensor_record(record.alias_of), record.numpy.itemsize
        offset = record.alias_offset_bytes
        # The stride of a dimension of one element may be any number.
        strides = [stride if size > 1 else 0 for size, stride in zip(record.shape, record.strides)]
        last = sum((size - 1) * stride for size, stride in zip(record.shape, strides))
        check(owner.alias_of is None and (0 in record.shape or offset + (last + 1) * item
                                          <= owner.nbytes), record.where, "an alias of other bytes")
        if 0 in record.shape:
            return numpy.zeros(record.shape, record.numpy)
        payload = self.tensor(record.alias_of, (), payloads).reshape(-1).view(numpy.uint8)
        return numpy.lib.stride_tricks.as_strided(
            payload[offset : offset + item].view(record.numpy), record.shape,
            [stride * item for stride in strides], writeable=False)

    def chunks(self, record):
        """Offsets and ChunkRecord of each chunk of a tensor. The chunks tile its shape."""
        found, prefix, dimensions = [], CHUNKS + encode(record.name) + b"\0", len(record.shape)
        for key, data in self.scan(prefix):
            chunk = parse(data, "ChunkRecord", record.where)
            chunk.sizes = chunk.sizes or []
            check(len(key) - len(prefix) == 8 * dimensions and len(chunk.sizes) == dimensions,
                  record.where, "a chunk has another number of dimensions")
            offsets = struct.unpack(f">{dimensions}Q", key[len(prefix) :])
            chunk.where = f"{record.where}, chunk at {offsets}"
            check(all(0 < size <= extent - offset for offset, size, extent
                      in zip(offsets, chunk.sizes, record.shape)), chunk.where, "is outside")
            chunk.nbytes = math.prod(chunk.sizes) * record.numpy.itemsize
            check_chunk(chunk)
            found.append((offsets, chunk))
        total = record.nbytes if record.alias_of is None else 0
        check(len(found) == record.chunk_count and sum(chunk.nbytes for _, chunk in found) == total,
              record.where, "its chunks do not have all of its elements")
        # Chunks with as many elements as the tensor tile it if no two overlap.
        edges = [sorted({edge for offsets, chunk in found
                         for edge in (offsets[d], offsets[d] + chunk.sizes[d])})
                 for d in range(dimensions)]
        grid = [max(len(edge) - 1, 0) for edge in edges]
        check(math.prod(grid) <= 1 << 26, record.where, "too irregular for this reader")
        covered = numpy.zeros(grid, bool)
        for offsets, chunk in found:
            cell = tuple(slice(*(bisect.bisect_left(edge, x) for x in (offset, offset + size)))
                         for edge, offset, size in zip(edges, offsets, chunk.sizes))
            check(not covered[cell].any(), chunk.where, "overlaps with another one")
            covered[cell] = True
        return found

    # -- Bytes of chunks

    def open_segment(self, number):
        record = parse(self.get(SEGMENTS + number.to_bytes(8, "big")), "SegmentRecord",
                       f"{self.where}, segment {number:016x}")
        file = File(self.store.directory, f"segments/{record.epoch:08x}-{number:016x}"
                    f"{record.id_tail:08x}.seg")
        check(record.segment_id == number, file.name, "its SegmentRecord is of another segment")
        check(file.size == record.file_bytes, file.name, f"has {file.size} bytes")
        return file, record

    def extent_file(self, extent):
        """The segment of an extent, in which its bytes exist."""
        file, _ = self.segment(extent.segment_id)
        check(4096 <= extent.offset_bytes <= file.size - extent.length_bytes, file.name,
              "an extent is in the header or after the end", extent.offset_bytes)
        return file

    def extent_bytes(self, extent):
        return self.extent_file(extent).read(extent.offset_bytes, extent.length_bytes)

    def chunk_bytes(self, chunk):
        """The bytes of a chunk, compared with its digest."""
        data = b"".join(self.extent_bytes(extent) for extent in chunk.extents)
        data = data if chunk.encoding < 2 else bytes(chunk.nbytes)
        for delta in chunk.deltas:
            data = apply_delta(self.extent_bytes(delta), data, f"{chunk.where}, a delta")
        check(tree_digest(data) == number_of(chunk.digest), chunk.where, "wrong digest")
        return data

def check_chunk(chunk):
    """The rules for the extents and deltas of a ChunkRecord (table.md, Records)."""
    version, where, deltas = chunk.version, chunk.where, chunk.deltas or []
    extents = [chunk.extent] if version == 1 else chunk.extents or []
    check(bool(chunk.extent) == (version == 1) != bool(chunk.extents) and chunk.digest
          and len(extents) >= (2 if version == 2 else 1), where, "a wrong number of extents")
    check(chunk.encoding == max(version - 2, 0) and bool(deltas) == (chunk.encoding > 0)
          and len(deltas) <= MAX_DELTAS, where, "another encoding or number of deltas")
    check(not deltas or max(chunk.nbytes, sum(delta.length_bytes for delta in deltas))
          <= MAX_WITH_DELTAS, where, "is too long for deltas")
    check(all(delta.length_bytes >= 16 + 8 * -(-chunk.nbytes // PAGE) for delta in deltas), where,
          "a delta is too short")
    check(sum(extent.length_bytes for extent in extents) == chunk.nbytes
          and len(extents) <= -(-chunk.nbytes // PAGE)
          and not any(extent.length_bytes % PAGE for extent in extents[:-1]), where, "bad extents")
    if chunk.encoding == 2:
        check([(x.segment_id, x.offset_bytes) for x in extents] == [(0, 0)], where, "wrong zeros")
        extents = []
    chunk.extents, chunk.deltas = extents, deltas


# ---- Verification -------------------------------------------------------------------------------

class Verification:
    """Reads every byte of the objects that the newest root reaches, and of all roots."""

    def __init__(self, store):
        self.store, self.errors, self.done, self.segments = store, [], set(), {}
        for number in store.root_numbers():
            self.attempt(store.read_root, number)
        for tag, step in store.tags.items():
            self.attempt(check, step in store.entries, "the newest root", f"tag {tag!r} of no step")
        for entry in store.entries.values():
            self.attempt(self.verify_step, entry)
        for _, arguments in sorted(self.segments.items()):
            self.attempt(verify_segment, *arguments, store.uuid)

    def attempt(self, function, *arguments):
        """Continues with the next object after an error."""
        try:
            return function(*arguments)
        except FormatError as error:
            self.errors.append(error)

    def is_new(self, *key):
        known = key in self.done
        self.done.add(key)
        return not known

    def verify_step(self, entry):
        step, summary = Step(self.store, entry), entry.summary
        for i, table in enumerate(step.tables):
            if self.is_new(table.name):
                self.attempt(self.verify_table, table, entry.tables[i + 1 :])
        check(parse(step.tables[0].get(STEPS), "StepSummary", step.where) == summary, step.where,
              "its newest table has another summary")
        leaves = {name: kind for kind, name in step.leaves()}
        kinds = collections.Counter(kind == VALUE for kind in leaves.values())
        check((kinds[False], kinds[True]) == (summary.tensor_count, summary.value_count),
              step.where, "has another number of leaves")
        uses, chunk_count = collections.Counter(), 0
        for key, _ in step.scan(TENSORS):
            record = step.tensor_record(decode(key[1:-1], step.where))
            check(record.hidden or leaves.pop(record.name, VALUE) != VALUE, record.where, "no leaf")
            if record.alias_of is not None:
                self.attempt(step.alias, record)
            chunks = self.attempt(step.chunks, record) or []
            chunk_count += len(chunks)
            for _, chunk in chunks:
                uses.update({x.segment_id: 0 for x in chunk.extents + chunk.deltas})
                for extent in chunk.extents + chunk.deltas:
                    uses[extent.segment_id] += extent.length_bytes
                self.attempt(self.verify_chunk, step, chunk)
        for key, _ in step.scan(VALUES):
            name = decode(key[1:-1], step.where)
            check(leaves.pop(name, None) == VALUE, step.where, f"{name!r} is not a leaf")
            step.value(name)
        step.applications()
        check(not leaves, step.where, f"leaves are missing: {list(leaves)[:3]}")
        check(chunk_count == summary.chunk_count == sum(1 for _ in step.scan(CHUNKS)), step.where,
              "has another number of chunks")
        self.verify_uses(step, uses)

    def verify_table(self, table, refs):
        """A table, whose last record names those after it (table.md, The last record)."""
        table.verify()
        words = [len(refs)]
        for ref in refs:
            words += [ref.id.id, epoch_and_tail(ref.id), ref.file_bytes, ref.record_count,
                      ref.digest]
        check(table.get(NEXT_TABLES) == struct.pack(f"<{len(words)}Q", *words), table.name,
              "names other tables after it")

    def verify_chunk(self, step, chunk):
        """The digests of the bytes as they are stored, and of the chunk."""
        places = []
        for extent in chunk.extents + chunk.deltas:
            file, _ = step.segment(extent.segment_id)
            places.append((file.name, *vars(extent).values()))
            if self.is_new(places[-1]):
                digests = page_digests(step.extent_bytes(extent))
                check(digests == file.read(extent.page_digests_offset_bytes, len(digests)),
                      file.name, "pages have other digests", extent.offset_bytes)
        if self.is_new(number_of(chunk.digest), *places):
            step.chunk_bytes(chunk)

    def verify_uses(self, step, uses):
        """The records of segments and the usage are those of the chunks (table.md, root.md)."""
        for key, _ in step.scan(SEGMENTS):
            file, record = step.segment(int.from_bytes(key[1:], "big"))
            check(record.segment_id in uses, step.where, f"uses no bytes of {file.name}")
            self.segments[file.name] = file, record
        found = {int.from_bytes(key[1:], "big"): (u64(value, 8), u64(value, 0))
                 for key, value in step.scan(USAGE)}
        if not step.entry.usage_in_tables:
            found = {use.id: (epoch_and_tail(use), use.live_bytes)
                     for use in step.entry.usage or []}
        expected = {number: (epoch_and_tail(step.segment(number)[1]), uses[number])
                    for number in uses}
        check(found == expected, step.where, "the usage is not what its chunks use")

def verify_segment(file, record, uuid):
    """Each byte of a segment (segment.md)."""
    where, size, number = file.name, file.size, record.segment_id
    check(size % 4096 == 0 and size >= 8192, where, "the file has another length")
    header, trailer = file.read(0, 4096), file.read(size - 80, 80)
    expected = struct.pack("<8sII16sQQII", b"CAIRNSEG", 3, 4096, uuid, number, record.step,
                           record.rank, record.epoch)
    check(digest64(header[:4088]) == u64(header, 4088) and header[:56] == expected
          and u32(header, 64) == record.id_tail and not any(header[68:4088]), where,
          "wrong header", 0)
    magic, version, zero, payload_end, digests_at, count, footer_length, *sums, own = struct.unpack(
        "<8sII7Q", trailer[:72])
    check(digest64(trailer[:72]) == u64(trailer, 72) and (magic, version, zero, own)
          == (b"CAIRNEND", 3, 0, number), where, "wrong trailer", size - 80)
    footer_at, footer_end = digests_at + 8 * count, digests_at + 8 * count + footer_length
    check(4096 <= payload_end <= digests_at and footer_end <= size - 80, where, "parts overlap")
    digests, footer = file.read(digests_at, 8 * count), file.read(footer_at, footer_length)
    check(sums == [digest64(digests), digest64(footer)]
          == [record.page_digests_checksum, record.footer_digest], where, "damaged", digests_at)
    footer = parse(footer, "SegmentFooter", where)
    check((footer.segment_id, footer.step, footer.rank) == (number, record.step, record.rank),
          where, "the footer is of another segment", footer_at)
    ranges = set()
    for entry in footer.entries or []:
        if entry.column == CHUNKS[0]:
            chunk = parse(entry.value, "ChunkRecord", where)
            extents = (chunk.extents or [chunk.extent]) + (chunk.deltas or [])
            ranges |= {tuple(vars(x).values())[1:] for x in extents if x.segment_id == number}
    at = 4096
    zeros = [(payload_end, digests_at), (footer_end, size - 80)]
    for offset, length, place in sorted(ranges):
        check(at <= offset and offset + length <= payload_end, where, "extents overlap", offset)
        zeros.append((at, offset))
        at = offset + length
        pages = (file.read(page, min(PAGE, at - page)) for page in range(offset, at, PAGE))
        for i, page in enumerate(pages, (place - digests_at) // 8):
            check(0 <= i < count and digest64(page) == u64(digests, 8 * i), where, "damaged", at)
    check(count == sum(-(-length // PAGE) for _, length, _ in ranges)
          and record.payload_bytes == sum(length for _, length, _ in ranges), where,
          "the records of chunks do not have all payload", footer_at)
    for begin, end in (*zeros, (at, payload_end)):
        for position, piece in file.pieces(begin, end):
            check(not any(piece), where, "a gap is not zero", position)


# ---- Command line -------------------------------------------------------------------------------

def parse_slices(text):
    """"0:2,3:" as slices."""
    found = [re.fullmatch(r"(\d*):(\d*)", part.strip()) for part in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} is not BEGIN:END,...")
    return tuple(slice(*(int(x) if x else None for x in match.groups())) for match in found)

def show(value):
    """The text of a value. Python refuses to show long numbers in decimal."""
    is_long = isinstance(value, int) and value.bit_length() > 10_000
    return hex(value) if is_long else repr(value)

def describe(step, kind, name):
    """A leaf, for the list of keys."""
    if kind == VALUE:
        value = step.value(name)
        return {"key": name, "type": type(value).__name__, "value": show(value)}
    record = step.tensor_record(name)
    return {"key": name, "type": "tensor", "dtype": record.dtype_name, "shape": record.shape,
            "nbytes": record.nbytes, "alias_of": record.alias_of}

def report(options):
    """What the command line asks for: an object for JSON, and the same as lines."""
    directory, at, name = options.store.rpartition("@")
    if not at or os.path.exists(options.store):
        directory, name = options.store, ""
    store = Store(directory)
    if options.verify:
        errors = [str(error) for error in store.verify()]
        found = {"steps": len(store.entries), "errors": errors}
        return found, errors or [f"{len(store.entries)} steps are intact"]
    if options.key:
        value = store.step(name or "latest").read(options.key, options.slice)
        if isinstance(value, (numpy.ndarray, numpy.generic)):
            return {"shape": value.shape, "hex": value.tobytes().hex()}, [str(value)]
        return {"value": show(value)}, [show(value)]
    if name:
        step = store.step(name)
        found = [describe(step, kind, key) for kind, key in step.leaves()]
        return found, [" ".join(str(value) for value in row.values()) for row in found]
    found = [json.loads(json.dumps(entry.summary, default=lambda x: x.hex() if isinstance(x, bytes)
                                   else vars(x))) for entry in store.entries.values()]
    for row in found:
        row["tags"] = [tag for tag, step in store.tags.items() if step == row["step"]]
    return found, [f"{row['step']}: {row['tensor_count']} tensors, {row['logical_bytes']} bytes "
                   f"{' '.join(row['tags'])}".rstrip() for row in found]

def main(arguments=None):
    parser = argparse.ArgumentParser(description="Reads and verifies a store of Cairn.")
    parser.add_argument("store", metavar="STORE[@STEP]", help="a directory, and a step or tag")
    parser.add_argument("--key", help="print this tensor or value")
    parser.add_argument("--slice", type=parse_slices, default=(), help="of a tensor: 0:2,3:")
    parser.add_argument("--verify", action="store_true", help="print what is damaged")
    parser.add_argument("--json", action="store_true", help="print JSON; tensors as hex")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(errors="backslashreplace")  # keys may have lone surrogates
    try:
        found, lines = report(options)
    except FormatError as error:
        found, lines = {"errors": [str(error)]}, [f"error: {error}"]
    print(json.dumps(found, indent=1) if options.json else "\n".join(lines))
    return 1 if isinstance(found, dict) and found.get("errors") else 0


if __name__ == "__main__":
    sys.exit(main())
