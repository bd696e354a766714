"""The zip archives of torch.save: reads them from mapped files, and writes them in one pass."""

from __future__ import annotations

import io
import mmap
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, NamedTuple

import torch

from cairn import _cairn
from cairn._interop.pickles import Reader
from cairn.errors import Corrupt, Error, Invalid, NotFound, Unavailable

_BLOCK_BYTES = 8 << 20
_MAX_DIRECTORY_BYTES = 64 << 20
_LOCAL_HEADER = struct.Struct("<4s5HIIIHH")
_ALIGNMENT = 64

Progress = Callable[[int, int], object]


class MappedFile:
    """A file in memory, whose pages the system may drop at any time. Must not be truncated."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                # An empty file cannot be mapped.
                self.map: Any = self.size and mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise NotFound(f"cannot open the file: {error.strerror}", file=path) from None
        except (OSError, ValueError) as error:
            raise Unavailable(f"cannot read the file: {error}", file=path) from None
        if what := _cairn.describe_wrong_file(bytes(self.bytes(0, 256))):
            raise Invalid(what, file=path)

    def bytes(self, begin: int, size: int) -> memoryview:
        return memoryview(self.map or b"")[begin : begin + size]

    def tensor(self, begin: int, size: int) -> torch.Tensor:
        """A part of the file as a tensor of uint8, which must not be written to."""
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the memory is not writable
            return torch.frombuffer(self.map, dtype=torch.uint8, count=size, offset=begin)

    def release(self, begin: int = 0, size: int | None = None) -> None:
        """Releases the pages that were read so far."""
        begin -= begin % mmap.PAGESIZE
        size = self.size - begin if size is None else size
        if size:
            self.map.madvise(mmap.MADV_DONTNEED, begin, size)


class Member(NamedTuple):
    """A member of an archive: its place in the file."""

    file: MappedFile
    name: str
    begin: int
    size: int
    crc: int

    def verify(self) -> int:
        """Compares the checksum, and returns the size. Raises Corrupt."""
        crc = 0
        for at in range(0, self.size, _BLOCK_BYTES):
            block = min(_BLOCK_BYTES, self.size - at)
            crc = zlib.crc32(self.file.bytes(self.begin + at, block), crc)
            if self.size > _BLOCK_BYTES:
                self.file.release(self.begin + at, block)
        if crc != self.crc:
            raise Corrupt(
                f"'{self.name}' does not match its checksum", file=self.file.path, offset=self.begin
            )
        return self.size


class _Window(io.RawIOBase):
    """A part of a file or a mapping, for zipfile. A part that is read is `size` bytes long."""

    def __init__(self, file: Any, begin: int, size: int = 0) -> None:
        self._file, self._begin, self._size = file, begin, size

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        begin = {0: self._begin, 1: self._file.tell(), 2: self._begin + self._size}[whence]
        self._file.seek(begin + offset)
        return self.tell()

    def tell(self) -> int:
        return self._file.tell() - self._begin

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self.tell())
        size = left if size < 0 else min(size, left)
        if size > _MAX_DIRECTORY_BYTES:
            raise Invalid(f"the archive's directory is longer than {_MAX_DIRECTORY_BYTES} bytes")
        return self._file.read(size)

    def write(self, data: Any) -> int:
        return self._file.write(data)


class Archive:
    """An archive of torch.save, in a part of a file."""

    def __init__(self, file: MappedFile, begin: int = 0, size: int | None = None) -> None:
        """Raises Corrupt or Invalid, without the path."""
        self.file, self._begin = file, begin
        self._size = file.size - begin if size is None else size
        head = bytes(file.bytes(begin, min(self._size, 300)))
        if not head.startswith(b"PK\x03\x04"):
            if b"\x8a\x0al\xfc\x9c\x46\xf9\x20" in head[:16] or head[257:262] == b"ustar":
                raise Invalid(
                    "it is in torch.save's format from before torch 1.6; load it with torch.load "
                    "and save it again"
                )
            raise Corrupt("it is not a file of torch.save")
        self.members = {member.name: member for member in self._list()}
        first = next(iter(self.members), "")
        self._folder = first[: first.find("/") + 1]
        self._check()

    def read(self) -> tuple[Any, Reader]:
        """The saved object, and the reader that has read it."""
        data = self.members[self._folder + "data.pkl"]
        if self.has_checksums:
            data.verify()
        reader = Reader(self.file.bytes(data.begin, data.size), self._bytes_of)
        return reader.load(), reader

    @property
    def has_checksums(self) -> bool:
        """torch can be told to leave them out; then it writes zeros."""
        return any(member.crc for member in self.members.values() if member.size)

    def _bytes_of(self, key: str) -> torch.UntypedStorage:
        member = self.members.get(f"{self._folder}data/{key}")
        if member is None:
            raise Corrupt(f"storage '{key}' is missing")
        return self.file.tensor(member.begin, member.size).untyped_storage()

    def _list(self) -> list[Member]:
        """The members in the order of their places, where nothing else is."""
        try:
            with zipfile.ZipFile(_Window(self.file.map, self._begin, self._size)) as archive:
                found = sorted(archive.infolist(), key=lambda info: info.header_offset)
        except Error:
            raise
        except Exception as error:
            raise Corrupt(f"the archive is damaged, or was cut off ({error})") from None
        members, end = [], self._begin
        for info in found:
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
                raise Invalid(f"'{info.filename}' is compressed; torch.save does not compress")
            at = self._begin + info.header_offset
            header = self.file.bytes(at, _LOCAL_HEADER.size)
            if at < end or len(header) < _LOCAL_HEADER.size:
                raise Corrupt(f"'{info.filename}' overlaps another member of the archive")
            magic, *_, name_size, extra_size = _LOCAL_HEADER.unpack(header)
            begin = at + _LOCAL_HEADER.size + name_size + extra_size
            end = begin + info.file_size
            name = bytes(self.file.bytes(at + _LOCAL_HEADER.size, name_size))
            if (
                magic != b"PK\x03\x04"
                or end > self._begin + self._size
                or info.flag_bits & 1  # encrypted
                or name != info.orig_filename.encode()
            ):
                raise Corrupt(f"'{info.filename}' is not where the archive states")
            members.append(Member(self.file, info.filename, begin, info.file_size, info.CRC))
        if len({member.name for member in members}) != len(members):
            raise Corrupt("two members of the archive have the same name")
        return members

    def _check(self) -> None:
        texts = {}
        for name in ("byteorder", "version"):
            if member := self.members.get(self._folder + name):
                texts[name] = bytes(self.file.bytes(member.begin, min(member.size, 20)))
        if self._folder + "constants.pkl" in self.members:
            raise Invalid(
                "a TorchScript archive contains code; save its state_dict() with torch.save"
            )
        if self._folder + "data.pkl" not in self.members:
            raise Corrupt("the zip archive has no data.pkl, so it is not a file of torch.save")
        if texts.get("byteorder", b"little") != b"little":
            raise Invalid(
                "it was saved on a big-endian machine; load and save it again on a little-endian "
                "one"
            )
        version = texts.get("version", b"3").strip()
        if not version.isdigit() or int(version) > 10:
            raise Invalid(f"its archive version is {version!r}; up to 10 can be read")


def verify(archives: Iterable[Archive], progress: Progress) -> set[str]:
    """Compares the checksums of all members, on all cores. Returns the files that have none. Raises
    Corrupt, and what `progress` raises."""
    unchecked, members = set(), []
    for archive in archives:
        if archive.has_checksums:
            members += archive.members.values()
        else:
            unchecked.add(archive.file.path)
    total, done = sum(member.size for member in members), 0
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        try:
            for size in pool.map(Member.verify, members):
                done += size
                progress(done, total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return unchecked


class _WrittenZip(zipfile.ZipFile):
    """An archive that is not closed is abandoned: its file is closed and removed before. The
    destructor of the base class would write to it."""

    def __del__(self) -> None:
        pass


class ArchiveWriter:
    """Writes an archive at the end of a file, as torch.save does it: members are not compressed,
    begin at multiples of 64 bytes, and have a checksum. The same contents give the same bytes."""

    def __init__(self, file: BinaryIO, pickled: bytes) -> None:
        self._file, self._begin = file, file.tell()
        self._zip = _WrittenZip(_Window(file, self._begin), "w")
        self._storages = 0
        self._add("data.pkl", len(pickled), [pickled])
        self._add("byteorder", 6, [b"little"])

    def add_storage(self, size: int, blocks: Iterable[Any]) -> None:
        """Adds the next storage."""
        self._add(f"data/{self._storages}", size, blocks)
        self._storages += 1

    def finish(self) -> int:
        """Returns the size of the archive."""
        self._add("version", 2, [b"3\n"])
        self._zip.close()
        return self._file.tell() - self._begin

    def _add(self, name: str, size: int, blocks: Iterable[Any]) -> None:
        info = zipfile.ZipInfo(f"archive/{name}")
        is_long = size >= 1 << 31
        header = _LOCAL_HEADER.size + len(info.filename) + 4 + (20 if is_long else 0)
        padding = -(self._zip.start_dir + header) % _ALIGNMENT
        info.extra = struct.pack("<2sH", b"FB", padding) + bytes(padding)
        with self._zip.open(info, "w", force_zip64=is_long) as member:
            for block in blocks:
                member.write(block)
