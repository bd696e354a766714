# SPDX-License-Identifier: Apache-2.0
"""Reads and verifies stores of Cairn without Cairn: the executable specification of its format.

It was written from docs/format/ and schema/ alone, and each part names its page. It reads a store
in a directory, on any operating system and byte order, and is slow where that is shorter:

    store = cairn_reader.Store("runs/gpt")
    store.entries                    # the entries of all steps, by number
    step = store.step("latest")      # or a number, or a tag
    step.keys()                      # the kind of each leaf, by its FQN
    step.read("model.w", numpy.s_[0:2, 3:])
    step.state()
    store.verify()                   # the errors in all objects that the store needs

`python -m cairn_reader --help` describes the command line.

A store is treated as hostile input. Whatever does not follow the pages raises FormatError; a length
is compared with the bytes that exist before memory is allocated; nothing recurses without a limit;
and a pickle is returned as bytes and never executed.
"""

import bisect
import collections
import contextlib
import functools
import math
import os
import re
import struct
from types import SimpleNamespace

import numpy
import xxhash
import zstandard

FORMAT, KNOWN_FEATURES = 3, frozenset()  # store.md, compatibility.md
PAGE = 65536  # bytes that have one digest, unless a chunk states another length (digest.md)
MAX_RECORD = 64 << 20  # bytes of the record of a root or a page; these limits are in limits.md
MAX_WITH_DELTAS = 1 << 30  # bytes of a chunk with deltas
UTF8 = "utf-8", "surrogatepass"  # of all texts: lone surrogates are characters (keys.md)
MAX_DELTAS, MAX_TABLES, MAX_LEVELS, MAX_FQN, MAX_VALUE = 64, 8, 1000, 65536, 1 << 30

class FormatError(Exception):
    """The store is damaged, or is not one that the pages describe."""

def check(condition, what, at=None):
    if not condition:
        raise FormatError(what if at is None else f"byte {at}: {what}")

@contextlib.contextmanager
def within(place):
    """Errors of this block are FormatErrors that begin with its place."""
    try:
        yield
    except (FormatError, OSError, UnicodeError, struct.error, zstandard.ZstdError) as error:
        text = str(error)
        raise FormatError(text if text.startswith(place) else f"{place}: {text}") from None

# ---- Numbers, digests (digest.md), files and zstd frames ----------------------------------------

digest64 = xxhash.xxh3_64_intdigest

def u32(data, at):
    return int.from_bytes(data[at : at + 4], "little")

def seal(data):
    """The XXH3-64 of bytes, as it is stored."""
    return digest64(data).to_bytes(8, "little")

def varints(data, at, count):
    """So many LEB128 numbers of 64 bits in their shortest form, and the position after them."""
    found = []
    while len(found) < count:
        value, shift, byte = 0, 0, 0x80
        while byte & 0x80:
            check(at < len(data) and shift < 64, "a varint does not end", at)
            byte = data[at]
            value, at, shift = value | (byte & 0x7F) << shift, at + 1, shift + 7
        check((byte or shift == 7) and value < 1 << 64, "a varint has another form", at)
        found.append(value)
    return *found, at

def page_digests(data, page=PAGE):
    pages = (memoryview(data)[at : at + page] for at in range(0, len(data), page))
    return b"".join(map(seal, pages))

def tree_digest(data, page=PAGE):
    """The page-tree digest: XXH3-128 of the digests of the pages and the length."""
    found = xxhash.xxh3_128_intdigest(page_digests(data, page) + len(data).to_bytes(8, "little"))
    return found & 2**64 - 1, found >> 64  # as in a Digest

def check_kind(kind):
    check(kind == 1, f"has digests of kind {kind}, which this reader does not know")

def decompress(data, length):
    """The contents of `data`, which must be one zstd frame of `length` bytes."""
    # No frame contains more than 128 KiB for each 4 bytes (root.md, Frame).
    check(length <= (len(data) // 4 + 1) << 17, "an impossible length of a zstd frame")
    check(zstandard.frame_content_size(data) == length, "a zstd frame has another length")
    found = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(
        data, max_output_size=length, allow_extra_data=False)
    check(len(found) == length, "a zstd frame has another length")
    return found

def read_frame(data, magic, name):
    """The record of a root or page (root.md, Frame)."""
    check(seal(data[:-8]) == data[-8:], "wrong checksum")
    *head, kind, zeros, length, stored = struct.unpack_from("<4sBBHII", data)
    check([*head, zeros] == [magic, 1, 0], "unknown magic or version", 0)
    check_kind(kind)
    check(length <= MAX_RECORD and stored == len(data) - 24, "lengths", 8)
    return parse(decompress(data[16:-8], length), name)

# ---- FlatBuffers (schema/*.fbs) -----------------------------------------------------------------

NUMBERS = {"u8": "B", "u32": "I", "u64": "Q", "i64": "q"}
STRUCTS = {
    "Digest": "QQ lo hi", "ChunkStatistics": "dddQQQ min max mean zeros nans infs",
    "Extent": "QQQQ segment_id offset_bytes length_bytes page_digests_offset_bytes",
    "ObjectId": "IIQ epoch id_tail id", "SegmentUse": "IIQQ epoch id_tail id live_bytes",
}  # fmt: skip
# What is not behind an offset: its layout, and what makes a value of its numbers.
INLINE = {name: (struct.Struct("<" + letter), int) for name, letter in NUMBERS.items()} | {
    name: (struct.Struct("<" + text.split()[0]), collections.namedtuple(name, text.split()[1:]))
    for name, text in STRUCTS.items()
}

# Tables with their identifiers, and their fields in the order of their ids: u64, if they state
# nothing else. "?" is a number that may be absent, "!" a field that must be there, "[T]" a vector,
# and "[16]" one of 16 bytes. Tables with an identifier have a version before these fields,
# unless they state where it is.
SCHEMA = """
Metric name:str bits
CodecParameters data:[u8]
ChunkRecord CNCH sizes:[u64] digest:Digest! since_step extent:Extent steps:[Extent] length_bytes
  further_extents:[Extent] statistics:ChunkStatistics version:u8 page_bits:u8 digest_kind:u8
  codecs:[u8] parameters:[CodecParameters]
TensorRecord CNTE dtype:u8 shape:[u64] nbytes chunk_count alias_of:str alias_offset_bytes
  alias_strides:[u64] hidden:u8
ValueRecord CNVA kind:u8 integer:i64 bytes:[u8] chunked_bytes:u64
ApplicationRecord CNAP data:[u8]
Extension name:str data:[u8]
StructureRecord CNTR kinds:[u8]! key_kinds:[u8]! keys:[str]! child_counts:[u32]!
  extensions:[Extension] forms:[u8]
ParentStep step attempt:str
StepSummary CNST step generation created_unix_ns:i64 world_size:u32 attempt:str base_step:u64?
  tensor_count value_count chunk_count reused_chunk_count logical_bytes written_bytes
  structure:Digest! rewritten metrics:[Metric] note:str parent:ParentStep run:[16]
  digest_kind:u8
SegmentRecord CNSG segment_id epoch:u32 step rank:u32 file_bytes payload_bytes chunk_count
  footer_digest page_digests_checksum id_tail:u32 key_id:[u8] tag:[u8] digest_kind:u8
FooterEntry column:u8 key:[u8] value:[u8]
SegmentFooter CNSF segment_id store_uuid:[16]! step rank:u32 attempt:str entries:[FooterEntry]
TableRef id:ObjectId! file_bytes record_count digest digest_kind:u8
StepEntry summary:StepSummary! tables:[TableRef]! usage:[SegmentUse] usage_in_tables:u8
StepsPage CNPS steps:[StepEntry]
PageRef id:ObjectId! file_bytes digest steps:[u8]! digest_kind:u8
Writer host:str pid:u32 session:str since_unix_ns:i64
RemovedObject name:str since_unix_ns:i64 file_bytes
Tag name:str step
KeepBest metric:str count highest:u8
RetentionPolicy keep_last keep_every keep_best:[KeepBest]
RootRecord CNRO number commit_id:[16]! store_uuid:[16]! epoch:u32 writer:Writer created_unix_ns:i64
  recent:[StepEntry] pages:[PageRef] removed:[RemovedObject] kept_before_epoch:u32 tags:[Tag]
  retention:RetentionPolicy compress:u8 predecessor:[16] read_features:[str] write_features:[str]
"""
TABLES, IDENTIFIERS = {}, {}  # the fields of each table: name, type, and "?" or "!"
for name, identifier, fields in re.findall(r"(?m)^(\w+) (CN\w\w )?(.*(?:\n  .*)*)", SCHEMA):
    IDENTIFIERS[name] = identifier.strip().encode()
    TABLES[name] = [("version", "u8", "")] if identifier and "version" not in fields else []
    TABLES[name] += [(field, kind or "u64", mark)
                     for field, kind, mark in re.findall(r"(\w+):?([][\w]*)([?!]?)", fields)]
DEFAULTS = {"version": 1, "digest_kind": 1, "page_bits": 16}  # 0 for all others

class FlatBuffer:
    """Reads a table and all that it refers to, and checks each position before it uses it.

    No two objects share bytes (table.md, Records). So no more bytes are read than the buffer has,
    whatever its offsets are, which bounds memory and time. The schema bounds the depth.
    """

    def __init__(self, data):
        self.data, self.unread = data, len(data)

    def take(self, at, length, align=1):
        self.unread -= length
        check(at % align == 0 and at + length <= len(self.data) and self.unread >= 0,
              f"{length} bytes of a FlatBuffer are outside of it, shared or not aligned", at)
        return self.data[at : at + length]

    def value(self, at, kind):
        """The field or element of a type, whose inline part is at `at`."""
        if kind in INLINE:
            layout, make = INLINE[kind]
            return make(*layout.unpack(self.take(at, layout.size, min(layout.size, 8))))
        distance = self.value(at, "u32")
        check(0 < distance < 1 << 31, "an offset does not point forward", at)
        at += distance
        if kind in TABLES:
            return self.table(at, kind)
        count, begin, element = self.value(at, "u32"), at + 4, kind.strip("[]")
        if kind == "str":
            text = self.take(begin, count + 1)
            check(text[-1] == 0, "a text does not end", at)
            return text[:-1].decode(*UTF8)
        if element in ("u8", "16"):
            check(element == "u8" or count == 16, f"{count} bytes instead of 16", at)
            return self.take(begin, count)
        size = inline_size(element)
        check(count * size <= self.unread, f"a vector has {count} elements", at)
        return [self.value(begin + i * size, element) for i in range(count)]

    def table(self, at, name):
        vtable = at - struct.unpack("<i", self.take(at, 4, 4))[0]
        check(0 <= vtable <= len(self.data) - 4 and vtable % 2 == 0, "no vtable", at)
        vtable_size, size = struct.unpack_from("<HH", self.data, vtable)
        check(4 <= vtable_size <= len(self.data) - vtable and vtable_size % 2 == 0
              and 4 <= size <= len(self.data) - at, "a wrong vtable", vtable)
        found = SimpleNamespace()
        # The kind of its digest first: of another kind, other fields are absent (digest.md).
        fields = sorted(enumerate(TABLES[name]), key=lambda x: x[1][0] != "digest_kind")
        for i, (field, kind, mark) in fields:
            place = u32(self.data, vtable + 4 + 2 * i) & 0xFFFF if 6 + 2 * i <= vtable_size else 0
            check(place == 0 or 4 <= place <= size - inline_size(kind), f"{field} is outside", at)
            check(place or mark != "!", f"a {name} has no {field}", at)
            absent = DEFAULTS.get(field, 0) if kind in NUMBERS and mark != "?" else None
            value = self.value(at + place, kind) if place else absent
            check_kind(value) if field == "digest_kind" else setattr(found, field, value)
        return found

def inline_size(kind):
    return INLINE[kind][0].size if kind in INLINE else 4

def parse(data, name):
    """A record: a verified buffer of a known version (table.md, Records)."""
    check(data and data[4:8] == IDENTIFIERS[name], f"there is no {name}")
    record = FlatBuffer(data).value(0, name)
    check(record.version == 1, f"an unknown version of {name}")
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

def read_block(data, place, kind):
    """Keys and values of a block: "records", "index" with places, "metaindex" or "properties"."""
    offset, length = place
    end = offset + length
    check(end + TRAILER <= len(data) - FOOTER, "no such block", offset)
    block, compression = data[offset:end], data[end]
    found = (digest64(block) ^ compression * 0x6B9083D9) & 0xFFFFFFFF
    check(found == u32(data, end + 1), "a block has a wrong checksum", offset)
    if compression:
        check(compression == 7 and kind == "records", "unknown compression of a block", offset)
        size, at = varints(block, 0, 1)
        check(size < 1 << 32, "a block is too long", offset)
        block = decompress(block[at:], size)
    end = len(block) - 4 - 4 * u32(block, len(block) - 4)
    check(0 < end < len(block) - 4, "a block has no restart points", offset)
    interval = {"records": 16, "properties": end}.get(kind, 1)
    keys, values, restarts, at, key = [], [], b"", 0, b""
    while at < end:
        is_restart = len(keys) % interval == 0
        restarts += at.to_bytes(4, "little") if is_restart else b""
        shared, added, *length, at = varints(block, at, 2 if kind == "index" else 3)
        check(shared <= (0 if is_restart else len(key)) and at + added + sum(length) <= end,
              "an entry is longer than its block, or shares too much", offset)
        key, at = key[:shared] + block[at : at + added], at + added
        if length:
            value, at = block[at : at + length[0]], at + length[0]
        else:
            *value, at = varints(block, at, 2)
        keys.append(key)
        values.append(value)
    check(at == end and restarts == block[end:-4], "wrong restart points", offset)
    if kind == "records":
        check(all(key.endswith(SUFFIX) and key != SUFFIX for key in keys), "a suffix", offset)
        keys = [key[: -len(SUFFIX)] for key in keys]
    check(all(a < b for a, b in zip(keys, keys[1:])), "keys do not ascend", offset)
    return list(zip(keys, values, strict=True))

def read_table(data):
    """The records of a table, ascending by key. Each byte of it is checked."""
    check(len(data) > FOOTER, "is too short for a table")
    footer = data[-FOOTER:]
    *places, at = varints(footer, 1, 4)
    check(footer[0] == 4 and not any(footer[at:41]) and at <= 41
          and footer[41:] == bytes.fromhex("05000000f7cff485b741e288"), "wrong footer")
    metaindex, top = places[:2], places[2:]
    found = dict(read_block(data, metaindex, "metaindex"))
    check(list(found) == [b"rocksdb.properties"], "unknown blocks")
    *properties_place, _ = varints(found[b"rocksdb.properties"], 0, 2)
    properties = dict(read_block(data, properties_place, "properties"))
    for key, value in PROPERTIES.items():
        check(properties.get(b"rocksdb." + key) == value, f"another {key.decode()}")
    records, places, partitions, last = [], [], read_block(data, top, "index"), b""
    for last_of_partition, partition in partitions:
        index = read_block(data, partition, "index")
        check(index[-1][0] == last_of_partition, "a partition has another last key", partition[0])
        for index_key, place in index:
            found = read_block(data, place, "records")
            check(last < found[0][0] and found[-1][0] <= index_key, "a wrong index", place[0])
            records += found
            places.append(place)
            last = index_key
    places += [*(place for _, place in partitions), top, properties_place, metaindex]
    ends = [sum(place) + TRAILER for place in places]
    check([place[0] for place in places] == [0, *ends[:-1]] and ends[-1] == len(data) - FOOTER,
          "gaps between blocks")
    count, _ = varints(properties.get(b"rocksdb.num.entries", b""), 0, 1)
    check(count == len(records), f"has {len(records)} records instead of {count}")
    return records

# ---- The store, roots and pages (store.md, root.md) ---------------------------------------------

def object_name(epoch, id_tail, id):
    """The name of a segment, a table or a page, without its folder and suffix."""
    return f"{epoch:08x}-{id:016x}{id_tail:08x}"

def root_name(number):
    return f"roots/{2**64 - 1 - number:016x}.root"

def require_features(names):
    """Refuses a store that a reader must know features to read (compatibility.md)."""
    unknown = [name for name in names or [] if name not in KNOWN_FEATURES]
    check(not unknown, f"the store needs features that this reader does not know: {unknown}")

class Store:
    """A store in a directory, as its newest root at the time of the open describes it."""

    def __init__(self, directory):
        self.directory = os.path.abspath(directory)
        self.table = functools.lru_cache(16)(self.read_table)
        with within("CAIRN"):
            self.uuid = self.read_identity()
        with within("roots"):
            bound = self.read_hint()  # before the roots, which may be put in the meantime
            self.root = self.newest_root()
            check(self.root.number >= bound, f"the newest root is lost: {root_name(bound)}")
            require_features(self.root.read_features)
            self.entries = self.read_entries()
            self.tags = {tag.name: tag.step for tag in self.root.tags or []}
            check(set(self.tags.values()) <= set(self.entries), "a tag is of no step")

    def size(self, name):
        return os.path.getsize(os.path.join(self.directory, *name.split("/")))

    def read(self, name, at=0, length=None):
        """A range of an object, or all of it."""
        length = self.size(name) if length is None else length
        check(0 <= at and 0 <= length <= self.size(name) - at, "ends before what is read", at)
        with open(os.path.join(self.directory, *name.split("/")), "rb") as file:
            file.seek(at)
            return file.read(length)

    def read_with_digest(self, name, length, digest):
        data = self.read(name)
        check(len(data) == length and digest64(data) == digest, "wrong digest of the object")
        return data

    def read_identity(self):
        """The uuid in CAIRN. Unknown lines are ignored."""
        text = self.read("CAIRN")
        body, _, last = text.rpartition(b"checksum ")
        check(last == b"%016x\n" % digest64(body) and len(text) <= 4096, "wrong checksum")
        lines = body.decode("ascii").split("\n")
        check(lines[0] == "cairn store", "not a store")
        check(lines[1] == f"format {FORMAT}", f"{lines[1]!r} is not format {FORMAT}")
        values = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines[:-1]}
        check(len(values) == len(lines) - 1 and not lines[-1], "two lines have one name")
        check(re.fullmatch("[0-9a-f]{32}", values.get("uuid", "")), "has no uuid")
        require_features(values.get("read-features", "").split())
        return bytes.fromhex(values["uuid"])

    def read_hint(self):
        """The number of a root that the store has had; 0 if nothing states one."""
        text = b""
        with contextlib.suppress(OSError, FormatError):
            text = self.read("hint", 0, 90)
        lines = re.fullmatch(rb"root (\d{20})\nuuid (\w{32})\n", text[:64])
        is_whole = lines and text[64:] == b"checksum %016x\n" % digest64(text[:64])
        is_own = is_whole and lines[2] == self.uuid.hex().encode() and int(lines[1]) < 2**63
        return int(lines[1]) if is_own else 0

    def root_numbers(self):
        """The numbers of all names of roots, highest first."""
        names = os.listdir(os.path.join(self.directory, "roots"))
        names = [name for name in names if re.fullmatch(r"[0-9a-f]{16}\.root", name)]
        numbers = [2**64 - 1 - int(name[:16], 16) for name in names]
        return sorted((number for number in numbers if 0 < number < 2**63), reverse=True)

    def read_root(self, number):
        with within(root_name(number)):
            root = read_frame(self.read(root_name(number)), b"CNRT", "RootRecord")
            check(root.number == number, f"is root {root.number}")
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
            check(root.predecessor, f"root {number} is the first of an interrupted rebuild")
            check(number - 1 in numbers, f"{root_name(number - 1)} does not exist, so root "
                  f"{number} may not be the newest")
            with contextlib.suppress(FormatError):  # a damaged predecessor is the right one
                if root.predecessor != self.read_root(number - 1).commit_id:
                    continue
            return root
        raise FormatError("there is no root of this store")

    def read_entries(self):
        """The entries of all steps by number."""
        found, recent = [], self.root.recent or []
        for ref in self.root.pages or []:
            numbers, at = [], 0
            while at < len(ref.steps):
                distance, at = varints(ref.steps, at, 1)
                check(distance or not numbers, "the steps of a page do not ascend")
                numbers.append(distance + (numbers or [0])[-1])
            name = f"pages/{object_name(*ref.id)}.steps"
            with within(name):
                data = self.read_with_digest(name, ref.file_bytes, ref.digest)
                entries = {entry.summary.step: entry
                           for entry in read_frame(data, b"CNPG", "StepsPage").steps or []}
                check(numbers and set(numbers) <= set(entries), "steps are missing")
            found += [entries[number] for number in numbers]
        found += recent
        entries = {entry.summary.step: entry for entry in found}
        check(all(0 < len(entry.tables) <= MAX_TABLES for entry in found), "too many tables")
        numbers = [entry.summary.step for entry in recent]
        check(len(entries) == len(found), "a step is listed twice")
        check(numbers == sorted(numbers) and max(entries, default=None) == (numbers or [None])[-1],
              "recent steps are not in order")
        return dict(sorted(entries.items()))

    def read_table(self, id, length, count, digest):
        """The records of a table, after the digest of the file was compared."""
        name = f"tables/{object_name(*id)}.sst"
        with within(name):
            records = read_table(self.read_with_digest(name, length, digest))
            check(len(records) == count, f"has {len(records)} records instead of {count}")
            return dict(records)

    def latest(self):
        """The step that was saved last, unless it was put below the one from which it continued."""
        def saved_at(step):
            return step.created_unix_ns, step.step

        steps = [entry.summary for entry in self.entries.values()]
        latest = max(steps, default=None, key=saved_at)
        while latest and (parent := latest.parent) and parent.step >= latest.step:
            higher = [step for step in steps if step.step > latest.step]
            later = [step for step in higher if step.attempt == parent.attempt
                     or step.step == parent.step == step.base_step
                     and step.created_unix_ns <= latest.created_unix_ns]
            later = later or [step for step in higher if step.step < parent.step]
            if not later:
                break
            latest = max(later, key=saved_at)
        return latest and latest.step

    def step(self, name=None):
        """A step, by its number or its tag; the latest without a name or by "latest", if no step
        has this tag."""
        number = self.tags.get(name, self.latest() if name in (None, "latest") else name)
        number = int(number) if re.fullmatch("[0-9]{1,20}", str(number)) else None
        check(number in self.entries, f"there is no step {name!r}")
        return Step(self, self.entries[number])

    def verify(self):
        """The errors in all objects that the store needs."""
        return Verification(self).errors

# ---- Deltas (delta.md) --------------------------------------------------------------------------

def read_streams(data, at, count, length):
    """The streams after the directory at `at`, of a chunk of `length` bytes."""
    sizes = [struct.unpack_from("<II", data, at + 8 * i) for i in range(count)]
    check(sum(size for size, _ in sizes[1:]) <= length, "the streams are longer than the chunk", at)
    check(sizes[0][0] == 5 * -(-length // PAGE), "the page table has another size", at)
    streams, at = [], at + 8 * count
    for size, stored in sizes:
        check(stored <= size and at + stored <= len(data), "a stream has another size", at)
        stream, at = data[at : at + stored], at + stored
        stream = decompress(stream, size) if stored < size else stream
        streams.append(numpy.frombuffer(stream, numpy.uint8))
    check(at == len(data), "bytes after the last stream", at)
    return streams

def unpack_symbols(stream, count):
    """`count` symbols of two bits, the first one in the lowest bits, as u64."""
    symbols = (stream[:, None] >> numpy.arange(0, 8, 2, dtype=numpy.uint8) & 3).reshape(-1)
    check(len(stream) == -(-count // 4) and not symbols[count:].any(), "wrong symbols")
    return symbols[:count].astype(numpy.uint64)

def apply_delta(data, base):
    """The version of a chunk that results from a delta and the version before it."""
    *head, size, zero, length = struct.unpack_from("<4sBBHQ", data)
    check(head == [b"CDLT", 1] and zero == 0 and length == len(base), "another delta", 0)
    check(size in (1, 2, 4, 8) and length % size == 0, "a wrong element", 5)
    pages = -(-length // PAGE)
    table, gaps, sparse, dense, large, raw, *planes = read_streams(
        data, 16 + 8 * pages, 6 + size, length)
    thresholds, *columns = table.reshape(5, pages).astype(int).tolist()
    counts = [[low + 256 * high for low, high in zip(*columns[i : i + 2])] for i in (0, 2)]
    ends = numpy.flatnonzero(gaps != 255)  # a gap ends with its first byte that is not 255
    check(len(ends) == sum(counts[0]) and not any(gaps[-1:] == 255), "wrong positions")
    check(len({len(plane) for plane in planes}) == 1, "planes have different lengths")
    streams = {
        "gaps": 255 * numpy.diff(ends, prepend=-1) - 255 + gaps[ends], "large": large, "raw": raw,
        "sparse": unpack_symbols(sparse, sum(counts[0])),
        "dense": unpack_symbols(dense, sum(counts[1])),
        "wide": numpy.stack(planes, axis=1).reshape(-1).view(f"<u{size}").astype(f"=u{size}"),
    }  # fmt: skip

    def take(name, count):
        """The next elements of a stream."""
        check(count <= len(streams[name]), f"the stream {name} is too short")
        taken, streams[name] = streams[name][:count], streams[name][count:]
        return taken

    def differences(name, count, add):
        """The next values plus `add`, as differences: z maps 0, -1, 1, -2, 2 to 0, 1, 2, 3, 4."""
        values = take(name, count).copy()
        larger = numpy.flatnonzero(values == 3)
        more = take("large", len(larger))
        values[larger] += more
        values[larger[more == 255]] = big = take("wide", int((more == 255).sum()))
        check((big >= 258).all(), "a wide value is small")
        check((values < 2 ** (8 * size) - add).all(), "a difference is too large")
        values = (values + numpy.uint64(add)).astype(new.dtype)
        return values >> 1 ^ (~(values & 1) + 1)

    new = numpy.frombuffer(base, f"<u{size}").astype(f"=u{size}")
    for i, (threshold, count, dense_count) in enumerate(zip(thresholds, *counts)):
        page = new[i * PAGE // size : (i + 1) * PAGE // size]
        check(threshold < 254 or count == dense_count == 0, f"page {i} has elements")
        if threshold == 255:
            page[:] = take("raw", len(page) * size).view(f"<u{size}")
        elif threshold == 254:
            rotated = take("wide", len(page))
            page[:] = rotated >> 1 | rotated << 8 * size - 1
        else:
            is_dense = page << 1 < threshold << 8 * (size - 1)
            places = numpy.cumsum(take("gaps", count) + 1) - 1
            check(is_dense.sum() == dense_count and not any(places[-1:] >= len(page))
                  and not is_dense[places].any(), f"page {i} has other elements")
            page[places] += differences("sparse", count, 1)
            page[is_dense] += differences("dense", dense_count, 0)
    check(not any(map(len, streams.values())), "a stream is too long")
    result = new.astype(f"<u{size}").tobytes()
    check(page_digests(result) == data[16 : 16 + 8 * pages], "a page has another digest", 16)
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
bits4x2=|u1 bcomplex32=<u4""".split())
]  # fmt: skip

# structure.fbs
DICT, ORDERED_DICT, COUNTER, LIST, TUPLE, TORCH_SIZE, TENSOR, ARRAY, SCALAR, VALUE = range(10)
ROOT, INDEX, STRING, INT, BOOL, NONE, FLOAT = range(7)
MARKS = ("", r"\I", "", r"\I", r"\B", r"\N", r"\F")

class Pickle(bytes):
    """A value that was pickled. It is data, and nothing here executes it."""

def read_value(record):
    """The Python object of a ValueRecord (value.fbs)."""
    kind, data = record.kind, record.bytes or b""
    check(kind <= 8 and len(data) == {4: 8, 5: 16}.get(kind, len(data)), "a wrong value")
    check(kind != 1 or record.integer in (0, 1), "a bool is neither 0 nor 1")
    return (
        lambda: None, lambda: bool(record.integer), lambda: record.integer,
        lambda: int.from_bytes(data, "little", signed=True), lambda: struct.unpack("<d", data)[0],
        lambda: complex(*struct.unpack("<dd", data)), lambda: data.decode(*UTF8), lambda: data,
        lambda: Pickle(data),
    )[kind]()  # fmt: skip

def read_key(kind, text):
    """The Python object that is the key of a dict (keys.md)."""
    try:
        if kind in (STRING, INT, FLOAT):
            return {STRING: str, INT: int, FLOAT: float}[kind](text)
        return {(BOOL, "True"): True, (BOOL, "False"): False, (NONE, "None"): None}[kind, text]
    except (KeyError, ValueError):
        raise FormatError(f"a key of kind {kind} is {text[:40]!r}") from None

def name_of_key(kind, text, form):
    """What a key contributes to an FQN (keys.md, Names)."""
    if form == 2:
        return text
    text = text.replace("\\", "\\\\")
    return MARKS[kind] + text.replace(".", "\\.") if form else text

def container(kind, children):
    """A dict, list or tuple."""
    if kind < LIST:
        items = {read_key(key_kind, key): item for key_kind, key, item in children}
        return (dict, collections.OrderedDict, collections.Counter)[kind](items)
    expected = [(INDEX, str(i)) for i in range(len(children))]
    check([child[:2] for child in children] == expected, "a list has another key")
    return (list if kind == LIST else tuple)(item for _, _, item in children)

class Step:
    """One step: its records are merged from its tables, of which the first with a key counts."""

    def __init__(self, store, entry):
        self.store, self.entry, self.summary = store, entry, entry.summary
        self.where = f"step {self.summary.step}"
        self.segment = functools.lru_cache(1024)(self.open_segment)
        records, after = {}, []
        for ref in reversed(entry.tables):  # the oldest one first
            (epoch, id_tail, id), *others = vars(ref).values()
            table = store.table(*vars(ref).values())
            check_kind(u32(table.get(NEXT_TABLES, b""), 4))
            check(table[NEXT_TABLES] == struct.pack("<II", len(after), 1) + b"".join(after),
                  f"{self.where}: the table {object_name(*ref.id)} names others after it")
            after.insert(0, struct.pack("<QII3Q", id, epoch, id_tail, *others))
            records |= table
        # An empty value is a tombstone.
        self.records = {key: value for key, value in sorted(records.items()) if value}
        self.order = list(self.records)
        with within(self.where):
            check(parse(self.records.get(STEPS), "StepSummary") == self.summary, "another summary")

    def scan(self, prefix):
        """The records whose keys begin with `prefix`, ascending."""
        begin = bisect.bisect_left(self.order, prefix)
        end = bisect.bisect_left(self.order, True, begin, key=lambda x: not x.startswith(prefix))
        return [(key, self.records[key]) for key in self.order[begin:end]]

    def record(self, column, name, kind):
        """The record of a tensor or a value."""
        return parse(self.records.get(column + name.encode(*UTF8) + b"\0"), kind)

    def at(self, name):
        """Errors in this block are about a tensor or a value."""
        return within(f"{self.where}, {name!r}")

    def applications(self):
        """The records of applications, by name."""
        with within(self.where):
            return {key[1:].decode(*UTF8): parse(data, "ApplicationRecord").data or b""
                    for key, data in self.scan(APPLICATION)}

    # -- The structure: a tree in preorder

    def walk(self, leaf):
        """The state, with what `leaf` returns for the kind and the FQN of each leaf."""
        with within(self.where):
            data = self.records.get(STRUCTURES)
            record = parse(data, "StructureRecord")
            check(tree_digest(data) == self.summary.structure, "another digest of the structure")
            forms = bytes(len(record.kinds)) if record.forms is None else record.forms
            vectors = [record.kinds, record.key_kinds, record.keys, record.child_counts, forms]
            check(len({len(vector) for vector in vectors}) == 1, "vectors have different lengths")
            roots, stack, names = [], [], set()  # stack: kind, key, name, children, how many
            for kind, key_kind, key, count, form in zip(*vectors, strict=True):
                check(len(stack) <= MAX_LEVELS and kind <= VALUE and key_kind <= FLOAT and form <= 2
                      and (kind < TENSOR or not count) and (key_kind == ROOT) == (not stack),
                      "a node is not possible")
                name = name_of_key(key_kind, key, form)
                name = f"{stack[-1][2]}.{name}" if len(stack) > 1 else name
                check(len(name.encode(*UTF8)) <= MAX_FQN, "a name is too long")
                stack.append((kind, (key_kind, key), name, [], count))
                if kind >= TENSOR:
                    check(name not in names, f"two leaves are {name!r}")
                    names.add(name)
                    item = leaf(kind, name)
                while stack and len(stack[-1][3]) == stack[-1][4]:
                    kind, key, _, children, _ = stack.pop()
                    item = item if kind >= TENSOR else container(kind, children)
                    (stack[-1][3] if stack else roots).append((*key, item))
            check(len(roots) == 1 and not stack, "nodes are missing")
            return roots[0][2]

    def keys(self):
        """The kind of each leaf by its FQN."""
        kinds = {}
        self.walk(lambda kind, name: kinds.update({name: kind}))
        return kinds

    def state(self):
        """The complete state. Tensors that share memory are views of one array."""
        payloads = {}

        def leaf(kind, name):
            if kind == VALUE:
                return self.value(name)
            array = self.tensor(name, (), payloads)
            return array[()] if kind == SCALAR else array

        return self.walk(leaf)

    def value(self, name):
        with self.at(name):
            record = self.record(VALUES, name, "ValueRecord")
            if record.chunked_bytes:  # table.md, Long values
                check(record.kind in (3, 6, 7, 8) and record.chunked_bytes <= MAX_VALUE
                      and not record.bytes, "a wrong value")
                tensor = self.tensor_record(name, is_owner=True)
                check((tensor.hidden, tensor.dtype_name, tensor.shape)
                      == (1, "uint8", [record.chunked_bytes]), "a value has other bytes")
                record.bytes = self.tensor(name).tobytes()
            return read_value(record)

    def read(self, name, index=()):
        """A leaf: a value, or a tensor or the part of it that slices with steps of 1 give."""
        is_value = VALUES + name.encode(*UTF8) + b"\0" in self.records
        return self.value(name) if is_value else self.tensor(name, index)

    # -- Tensors

    def tensor_record(self, name, is_owner=False):
        with self.at(name):
            record = self.record(TENSORS, name, "TensorRecord")
            check(record.alias_of is None or not is_owner, "an alias of an alias")
            check(0 < record.dtype < len(DTYPES), f"dtype {record.dtype} is unknown")
            record.name, (record.dtype_name, record.numpy) = name, DTYPES[record.dtype]
            record.shape, record.strides = record.shape or [], record.alias_strides or []
            # numpy needs that the other dimensions are small also if one is 0.
            nbytes = math.prod(filter(None, record.shape)) * record.numpy.itemsize
            check(nbytes < 2**63 and len(record.shape) <= 64
                  and record.nbytes == (0 if 0 in record.shape else nbytes),
                  "the shape and the number of bytes do not agree, or are too large")
            if record.alias_of is not None:
                check(len(record.strides) == len(record.shape), "a wrong number of strides")
                record.owner = self.tensor_record(record.alias_of, is_owner=True)
                # The stride of a dimension of one element may be any number.
                record.strides = [stride if size > 1 else 0
                                  for size, stride in zip(record.shape, record.strides)]
                last = sum((size - 1) * x for size, x in zip(record.shape, record.strides))
                end = record.alias_offset_bytes + (last + 1) * record.numpy.itemsize
                check(0 in record.shape or end <= record.owner.nbytes, "an alias of other bytes")
            return record

    def tensor(self, name, index=(), payloads=None):
        record = self.tensor_record(name)
        if record.alias_of is not None:
            return self.alias(record, payloads)[index]
        if payloads is not None and name in payloads:
            return payloads[name]
        ranges = [part.indices(size)[:2] for part, size in zip(index, record.shape)]
        chunks = self.chunks(record)  # before memory is allocated
        result = numpy.empty(record.shape, record.numpy)
        for offsets, chunk in chunks:
            if all(begin < offset + size and offset < end for (begin, end), offset, size
                   in zip(ranges, offsets, chunk.sizes)):
                place = tuple(slice(o, o + size) for o, size in zip(offsets, chunk.sizes))
                data = numpy.frombuffer(self.chunk_bytes(chunk), record.numpy)
                result[place] = data.reshape(chunk.sizes)
        if payloads is not None:
            payloads[name] = result
        return result[index]

    def alias(self, record, payloads):
        """A view of the tensor that has the bytes (table.md, Aliases)."""
        if 0 in record.shape:
            return numpy.zeros(record.shape, record.numpy)
        payload = self.tensor(record.alias_of, (), payloads).reshape(-1).view(numpy.uint8)
        first = payload[record.alias_offset_bytes :][: record.numpy.itemsize].view(record.numpy)
        strides = [stride * record.numpy.itemsize for stride in record.strides]
        return numpy.lib.stride_tricks.as_strided(first, record.shape, strides, writeable=False)

    def chunks(self, record):
        """Offsets and ChunkRecord of each chunk of a tensor. The chunks tile its shape."""
        prefix = CHUNKS + record.name.encode(*UTF8) + b"\0"
        found, dimensions = [], len(record.shape)
        with self.at(record.name):
            for key, data in self.scan(prefix):
                chunk = read_chunk(data)
                check(len(key) - len(prefix) == 8 * dimensions and len(chunk.sizes) == dimensions,
                      "a chunk has another number of dimensions")
                offsets = struct.unpack(f">{dimensions}Q", key[len(prefix) :])
                check(all(0 < size <= extent - offset for offset, size, extent
                          in zip(offsets, chunk.sizes, record.shape)), "a chunk is outside")
                chunk.where = f"{self.where}, {record.name!r}, chunk at {offsets}"
                chunk.nbytes = math.prod(chunk.sizes) * record.numpy.itemsize
                check_chunk(chunk)
                for extent in chunk.extents + chunk.deltas:
                    segment, record_of_segment = self.segment(extent.segment_id)
                    end = record_of_segment.file_bytes - extent.length_bytes
                    check(4096 <= extent.offset_bytes <= end, f"an extent is outside of {segment}")
                found.append((offsets, chunk))
            total = record.nbytes if record.alias_of is None else 0
            check(len(found) == record.chunk_count
                  and sum(chunk.nbytes for _, chunk in found) == total,
                  "its chunks do not have all of its elements")
            # Chunks with as many elements as the tensor tile it if no two overlap.
            begins, sizes = (numpy.array(boxes, int).reshape(len(found), dimensions) for boxes in (
                [offsets for offsets, _ in found], [chunk.sizes for _, chunk in found]))
            ends = begins + sizes
            for begin, end in zip(begins, ends):
                overlaps = ((begins < end) & (begin < ends)).all(axis=1)
                check(overlaps.sum() == 1, f"two chunks overlap at {begin}")
        return found

    # -- Bytes of chunks

    def open_segment(self, number):
        """The name and the SegmentRecord of a segment."""
        with within(f"{self.where}, segment {number:016x}"):
            record = parse(self.records.get(SEGMENTS + number.to_bytes(8, "big")), "SegmentRecord")
            check(record.segment_id == number, "its SegmentRecord is of another segment")
            name = f"segments/{object_name(record.epoch, record.id_tail, number)}.seg"
            check(self.store.size(name) == record.file_bytes, f"{name} has another length")
            return name, record

    def extent_bytes(self, extent, page=PAGE):
        """The bytes of an extent, compared with their page digests."""
        name, _ = self.segment(extent.segment_id)
        with within(name):
            data = self.store.read(name, extent.offset_bytes, extent.length_bytes)
            digests = page_digests(data, page)
            found = self.store.read(name, extent.page_digests_offset_bytes, len(digests))
            check(digests == found, "pages have other digests", extent.offset_bytes)
            return data

    def chunk_bytes(self, chunk):
        """The bytes of a chunk, compared with its digest."""
        with within(chunk.where):
            data = b"".join(self.extent_bytes(extent, chunk.page) for extent in chunk.extents)
            data = data if chunk.extents else bytes(chunk.nbytes)
            for delta in chunk.deltas:
                data = apply_delta(self.extent_bytes(delta), data)
            check(tree_digest(data, chunk.page) == chunk.digest, "wrong digest")
            return data

def read_chunk(data):
    """A ChunkRecord (chunk.md), with its `extents` and `deltas`, and the length of a `page`."""
    chunk = parse(data, "ChunkRecord")
    for codec in chunk.codecs or []:
        check(codec == 1, f"codec {codec} is unknown")
    check(12 <= chunk.page_bits <= 20 and not chunk.parameters, "impossible pages or parameters")
    chunk.page, chunk.sizes = 1 << chunk.page_bits, chunk.sizes or []
    chunk.deltas = chunk.steps or []
    chunk.extents = [x for x in (chunk.extent, *(chunk.further_extents or [])) if x]
    lengths = [extent.length_bytes for extent in chunk.extents]
    check(bool(chunk.extent) == bool(lengths) != bool(chunk.length_bytes) and all(lengths)
          and not any(length % chunk.page for length in lengths[:-1]), "bad extents")
    check(not chunk.steps or chunk.page == PAGE and len(chunk.deltas) <= MAX_DELTAS,
          "another number of deltas, or other pages")
    check((not chunk.codecs or len(chunk.codecs) == len(chunk.deltas))
          and (lengths or chunk.deltas), "another number of codecs")
    chunk.stored_length = sum(lengths) or chunk.length_bytes
    return chunk

def check_chunk(chunk):
    """The rules of a ChunkRecord that need the length of the chunk."""
    lengths, pages = [delta.length_bytes for delta in chunk.deltas], -(-chunk.nbytes // PAGE)
    check(chunk.stored_length == chunk.nbytes, "its bytes have another length")
    check(not lengths or chunk.nbytes <= MAX_WITH_DELTAS, "too long for deltas")
    check(sum(lengths) <= chunk.nbytes and all(length >= 16 + 8 * pages for length in lengths),
          "a delta's length")

# ---- Verification -------------------------------------------------------------------------------

class Verification:
    """Reads every byte of the objects that the newest root reaches, and of all roots."""

    def __init__(self, store):
        self.store, self.errors, self.done, self.segments = store, [], set(), {}
        for number in store.root_numbers():
            self.attempt(store.read_root, number)
        for entry in store.entries.values():
            self.attempt(self.verify_step, entry)
        for _, arguments in sorted(self.segments.items()):
            self.attempt(verify_segment, *arguments, store)

    def attempt(self, function, *arguments):
        """Continues with the next object after an error."""
        try:
            return function(*arguments)
        except FormatError as error:
            self.errors.append(error)

    def verify_step(self, entry):
        step, summary = Step(self.store, entry), entry.summary
        with within(step.where):
            kinds, uses = step.keys(), collections.Counter()
            values = {name for name in kinds if kinds[name] == VALUE}
            tensors = set(kinds) - values
            check((len(tensors), len(values)) == (summary.tensor_count, summary.value_count),
                  "has another number of leaves")
            records = [step.tensor_record(key[1:-1].decode(*UTF8)) for key, _ in step.scan(TENSORS)]
            check({record.name for record in records if not record.hidden} == tensors
                  and {key[1:-1].decode(*UTF8) for key, _ in step.scan(VALUES)} == values,
                  "the records are not those of the leaves")
            for name in values:
                step.value(name)
            step.applications()
            chunks = [chunk for record in records for _, chunk in step.chunks(record)]
            check(len(chunks) == summary.chunk_count == len(step.scan(CHUNKS)),
                  "has another number of chunks")
            for chunk in chunks:
                extents = chunk.extents + chunk.deltas
                for extent in extents:
                    uses[extent.segment_id] += extent.length_bytes
                if (chunk.digest, *extents) not in self.done:
                    self.done.add((chunk.digest, *extents))
                    self.attempt(step.chunk_bytes, chunk)
            self.verify_uses(step, uses)

    def verify_uses(self, step, uses):
        """The records of segments and the usage are those of the chunks (table.md, root.md)."""
        expected, found = {}, {use[:3]: use.live_bytes for use in step.entry.usage or []}
        for key, _ in step.scan(SEGMENTS):
            number = int.from_bytes(key[1:], "big")
            self.segments[number] = name, record = step.segment(number)
            check(number in uses, f"uses no bytes of {name}")
            expected[record.epoch, record.id_tail, number] = uses[number]
        for key, value in step.scan(USAGE):
            check(step.entry.usage_in_tables and not step.entry.usage, "has its usage twice")
            live_bytes, epoch, id_tail = struct.unpack_from("<QII", value)
            found[epoch, id_tail, int.from_bytes(key[1:], "big")] = live_bytes
        check(found == expected and len(found) == len(uses), "the usage is not what its chunks use")

def verify_segment(name, record, store):
    """Each byte of a segment (segment.md)."""
    with within(name):
        size, number = record.file_bytes, record.segment_id
        read = functools.partial(store.read, name)
        check(size % 4096 == 0 and size >= 8192, "the file has another length")
        header, trailer = read(0, 4096), read(size - 80, 80)
        expected = struct.pack(
            "<8sII16sQQII8sI4020x", b"CAIRNSEG", 3, 4096, store.uuid, number, record.step,
            record.rank, record.epoch, header[56:64], record.id_tail)
        check(header == expected + seal(expected), "wrong header")
        *head, kind, payload_end, digests_at, count, footer_length, _, _, own = struct.unpack(
            "<8sII7Q", trailer[:72])
        check(seal(trailer[:72]) == trailer[72:] and own == number
              and head == [b"CAIRNEND", 3], "wrong trailer")
        check_kind(kind)
        footer_at, footer_end = digests_at + 8 * count, digests_at + 8 * count + footer_length
        check(4096 <= payload_end <= digests_at and footer_end <= size - 80, "parts overlap")
        digests, footer = read(digests_at, 8 * count), read(footer_at, footer_length)
        sums = struct.pack("<QQ", record.page_digests_checksum, record.footer_digest)
        check(seal(digests) + seal(footer) == trailer[48:64] == sums, "damaged", digests_at)
        footer = parse(footer, "SegmentFooter")
        check((footer.segment_id, footer.step, footer.rank) == (number, record.step, record.rank),
              "the footer is of another segment", footer_at)
        extents = set()
        for entry in footer.entries or []:
            if entry.column == CHUNKS[0]:
                chunk = read_chunk(entry.value)
                extents |= {(extent, chunk.page) for extent in chunk.extents + chunk.deltas}
        at, pages = 4096, 0
        extents = sorted((x, page) for x, page in extents if x.segment_id == number)
        for (_, offset, length, place), page in extents:
            check(at <= offset and offset + length <= payload_end, "extents overlap", offset)
            check(not any(read(at, offset - at)), "a gap is not zero", at)
            found, begin = page_digests(read(offset, length), page), place - digests_at
            check(begin >= 0 and found == digests[begin : begin + len(found)], "damaged", offset)
            at, pages = offset + length, pages + len(found) // 8
        check(not any(read(at, digests_at - at)), "a gap is not zero", at)
        check(not any(read(footer_end, size - 80 - footer_end)), "a gap is not zero", footer_end)
        check(pages == count and record.payload_bytes == sum(x.length_bytes for x, _ in extents),
              "the records of chunks do not have all payload", footer_at)
