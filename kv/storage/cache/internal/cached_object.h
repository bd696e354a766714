#pragma once
/// One object in the reader cache: a sparse file with bytes of the object, and a file with a digest
/// per 4 KiB granule.
///
///   <path>        bytes of the object, at their offsets
///   <path>.xxh3   entry 0: the length of the object, if it is known; entry 1 + i: granule i
///
/// An entry has 16 bytes: a digest, and the part of the granule that is present, [begin, end). A
/// granule without an entry is absent (a digest of 0). Integers are little-endian.
///
///   1. Bytes are written before their entry, and nothing is synced.
///   2. Every read computes the digests of all granules that it uses. So what a kill, a power
///      failure, a full disk or another process leaves half written is absent, and is read from the
///      storage again.
///   3. Bytes of an object never change. Processes that write the same granule write the same.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kv/base/error.h"
#include "kv/base/read_range.h"
#include "kv/io/file_descriptor.h"

namespace cairn::kv::internal {

inline constexpr uint64_t kGranuleBytes = 4096;
/// The suffix that makes the path of the digests from the path of the bytes.
inline constexpr std::string_view kDigestSuffix = ".xxh3";

/// Ownership: owns both descriptors. Threads: all members may run on many threads at once, and in
/// many processes.
class CachedObject {
 public:
  /// Opens the files, the bytes at `place`; with `create`, creates what is absent. `name` is the
  /// name of the object; digests of another object do not match. Records that it was used, at most
  /// once per second. kNotFound: one of the files is absent.
  static Result<CachedObject> Open(const FilePlace& place, std::string_view name, bool create);

  /// Fills `target` from `offset_bytes` on if all of it is in the cache and intact. Otherwise
  /// returns false, and the contents of `target` are unspecified.
  bool Read(uint64_t offset_bytes, std::span<std::byte> target) const;
  /// Adds bytes of the object. kResourceExhausted, kUnavailable: they cannot be written; nothing is
  /// lost that was there before, unless its digest does not match any more.
  Result<void> Write(uint64_t offset_bytes, std::span<const std::byte> bytes);

  /// Returns the length of the object if SetSize has recorded it.
  std::optional<uint64_t> Size() const;
  Result<void> SetSize(uint64_t size_bytes);

 private:
  struct Entry;
  CachedObject(FileDescriptor bytes, FileDescriptor digests, uint64_t seed)
      : bytes_(std::move(bytes)), digests_(std::move(digests)), seed_(seed) {}

  uint64_t DigestOf(uint64_t granule, uint64_t begin, std::span<const std::byte> bytes) const;
  /// Returns whether the part of a granule that `entry` describes is intact. Fills `scratch`, of
  /// kGranuleBytes, with it.
  bool ReadVerified(uint64_t granule, const Entry& entry, std::span<std::byte> scratch) const;
  /// Returns the entry for a part of a granule that was written, joined with what is there already.
  Entry Join(uint64_t granule, uint64_t begin, std::span<const std::byte> bytes) const;

  FileDescriptor bytes_;
  FileDescriptor digests_;
  uint64_t seed_;
};

}  // namespace cairn::kv::internal
