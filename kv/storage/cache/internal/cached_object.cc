// Granules, their digests, and the files that contain them.

#include "kv/storage/cache/internal/cached_object.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <ctime>
#include <utility>
#include <vector>

#include "kv/base/digest.h"
#include "kv/io/internal/block_io.h"
#include "kv/io/internal/file.h"

namespace cairn::kv::internal {

// Entries are in memory as they are in the file only if this holds.
static_assert(std::endian::native == std::endian::little);

struct CachedObject::Entry {
  uint64_t digest = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

namespace {

constexpr uint64_t kEntryBytes = 16;

/// The part of a granule that a range of an object covers, relative to the granule.
struct Part {
  uint64_t granule = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t at = 0;  // where its first byte is, relative to the range
};

Part PartOf(uint64_t granule, uint64_t offset_bytes, uint64_t length_bytes) {
  const uint64_t start = granule * kGranuleBytes;
  const uint64_t begin = std::max(start, offset_bytes);
  const uint64_t end = std::min(start + kGranuleBytes, offset_bytes + length_bytes);
  return {
      .granule = granule, .begin = begin - start, .end = end - start, .at = begin - offset_bytes};
}

/// Returns whether all of `target` was read.
bool ReadFull(int fd, uint64_t offset_bytes, std::span<std::byte> target) {
  return TransferNow({.fd = fd,
                      .data = target.data(),
                      .length_bytes = target.size(),
                      .offset_bytes = offset_bytes})
             .done_bytes == target.size();
}

Result<void> WriteFull(int fd, uint64_t offset_bytes, std::span<const std::byte> bytes) {
  auto* const data = const_cast<std::byte*>(bytes.data());  // only read
  const IoCompletion written = TransferNow({.fd = fd,
                                            .write = true,
                                            .data = data,
                                            .length_bytes = bytes.size(),
                                            .offset_bytes = offset_bytes});
  if (written.done_bytes == bytes.size()) return {};
  const int error_number = written.error_number != 0 ? written.error_number : EIO;
  return Fail(SystemError(error_number, "cannot write to the cache"));
}

uint64_t EntryOffset(uint64_t granule) { return (granule + 1) * kEntryBytes; }

Result<FileDescriptor> OpenFile(const FilePlace& place, std::string_view suffix, bool create) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
  FileDescriptor file(
      ::openat(place.directory, fmt::format("{}{}", place.name, suffix).c_str(), flags, 0600));
  const std::string path = fmt::format("{}{}", place.path, suffix);
  struct stat status;
  if (!file.is_open() || ::fstat(file.get(), &status) != 0) {
    return Fail(SystemError(errno, "cannot open a file of the cache", path));
  }
  if (S_ISREG(status.st_mode) && status.st_nlink <= 1) return file;
  return Fail(ErrorCode::kFailedPrecondition,
              "this is not a file of the cache, or it has another name too", path);
}

}  // namespace

Result<CachedObject> CachedObject::Open(const FilePlace& place, std::string_view name,
                                        bool create) {
  static_assert(sizeof(Entry) == kEntryBytes);
  CAIRN_TRY_ASSIGN(FileDescriptor bytes, OpenFile(place, "", create));
  CAIRN_TRY_ASSIGN(FileDescriptor digests, OpenFile(place, kDigestSuffix, create));
  struct stat status;
  // Best effort: without it, the object may be evicted too early.
  if (::fstat(digests.get(), &status) == 0 && status.st_mtime != std::time(nullptr)) {
    (void)::futimens(digests.get(), nullptr);
  }
  return CachedObject(std::move(bytes), std::move(digests), Checksum64(AsBytes(name)));
}

uint64_t CachedObject::DigestOf(uint64_t granule, uint64_t begin,
                                std::span<const std::byte> bytes) const {
  // Bytes at another position, or of another object, must not match.
  const std::array<uint64_t, 4> position{seed_, granule, begin, bytes.size()};
  const uint64_t digest = Checksum64(bytes) ^ Checksum64(std::as_bytes(std::span(position)));
  return digest == 0 ? 1 : digest;
}

bool CachedObject::ReadVerified(uint64_t granule, const Entry& entry,
                                std::span<std::byte> scratch) const {
  if (entry.digest == 0 || entry.begin >= entry.end || entry.end > kGranuleBytes) return false;
  const auto present = scratch.subspan(entry.begin, entry.end - entry.begin);
  return ReadFull(bytes_.get(), granule * kGranuleBytes + entry.begin, present) &&
         DigestOf(granule, entry.begin, present) == entry.digest;
}

bool CachedObject::Read(uint64_t offset_bytes, std::span<std::byte> target) const {
  if (target.empty()) return false;
  const uint64_t first = offset_bytes / kGranuleBytes;
  const uint64_t last = (offset_bytes + target.size() - 1) / kGranuleBytes;
  std::vector<Entry> entries(last - first + 1);
  if (!ReadFull(digests_.get(), EntryOffset(first), std::as_writable_bytes(std::span(entries)))) {
    return false;
  }
  for (uint64_t i = 0; i < entries.size(); ++i) {
    const Part part = PartOf(first + i, offset_bytes, target.size());
    if (entries[i].digest == 0 || part.begin < entries[i].begin || part.end > entries[i].end) {
      return false;
    }
  }
  if (!ReadFull(bytes_.get(), offset_bytes, target)) return false;
  std::array<std::byte, kGranuleBytes> scratch;
  for (uint64_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const Part part = PartOf(first + i, offset_bytes, target.size());
    const auto wanted = target.subspan(part.at, part.end - part.begin);
    if (entry.begin == part.begin && entry.end == part.end) {
      if (DigestOf(part.granule, part.begin, wanted) != entry.digest) return false;
      continue;
    }
    // The digest covers more than what is wanted: return the bytes that it was computed over.
    if (!ReadVerified(part.granule, entry, scratch)) return false;
    std::ranges::copy(std::span(scratch).subspan(part.begin, wanted.size()), wanted.begin());
  }
  return true;
}

CachedObject::Entry CachedObject::Join(uint64_t granule, uint64_t begin,
                                       std::span<const std::byte> bytes) const {
  const uint64_t end = begin + bytes.size();
  Entry own{.digest = 0, .begin = static_cast<uint32_t>(begin), .end = static_cast<uint32_t>(end)};
  Entry found;
  std::array<std::byte, kGranuleBytes> scratch;
  const bool is_whole = bytes.size() == kGranuleBytes;
  if (!is_whole &&
      ReadFull(digests_.get(), EntryOffset(granule),
               std::as_writable_bytes(std::span(&found, 1))) &&
      found.begin <= end && begin <= found.end && ReadVerified(granule, found, scratch)) {
    std::ranges::copy(bytes, scratch.begin() + static_cast<ptrdiff_t>(begin));
    own.begin = std::min(own.begin, found.begin);
    own.end = std::max(own.end, found.end);
    own.digest =
        DigestOf(granule, own.begin, std::span(scratch).subspan(own.begin, own.end - own.begin));
    return own;
  }
  own.digest = DigestOf(granule, begin, bytes);
  return own;
}

Result<void> CachedObject::Write(uint64_t offset_bytes, std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  CAIRN_TRY(WriteFull(bytes_.get(), offset_bytes, bytes));
  const uint64_t first = offset_bytes / kGranuleBytes;
  const uint64_t last = (offset_bytes + bytes.size() - 1) / kGranuleBytes;
  std::vector<Entry> entries(last - first + 1);
  for (uint64_t i = 0; i < entries.size(); ++i) {
    const Part part = PartOf(first + i, offset_bytes, bytes.size());
    entries[i] = Join(part.granule, part.begin, bytes.subspan(part.at, part.end - part.begin));
  }
  return WriteFull(digests_.get(), EntryOffset(first), std::as_bytes(std::span(entries)));
}

std::optional<uint64_t> CachedObject::Size() const {
  std::array<uint64_t, 2> entry;
  if (!ReadFull(digests_.get(), 0, std::as_writable_bytes(std::span(entry)))) return std::nullopt;
  const std::array<uint64_t, 2> covered{seed_, entry[0]};
  if (Checksum64(std::as_bytes(std::span(covered))) != entry[1]) return std::nullopt;
  return entry[0];
}

Result<void> CachedObject::SetSize(uint64_t size_bytes) {
  const std::array<uint64_t, 2> covered{seed_, size_bytes};
  const std::array<uint64_t, 2> entry{size_bytes, Checksum64(std::as_bytes(std::span(covered)))};
  return WriteFull(digests_.get(), 0, std::as_bytes(std::span(entry)));
}

}  // namespace cairn::kv::internal
