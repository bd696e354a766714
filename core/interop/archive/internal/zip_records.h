#pragma once
/// The records of a zip archive, encoders and decoders side by side. Every encoder checks that the
/// decoder returns what it encoded.
///
/// Format: PKWARE APPNOTE 6.3 (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT) with
/// zip64. Only stored members are supported, not compressed ones.
///
///   local header | data | descriptor     for each member
///   directory                            one record for each member
///   zip64 end record, zip64 locator, end record

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"

namespace cairn::core::internal {

/// What the directory states about a member.
struct ZipRecord {
  std::string name;
  uint64_t length_bytes = 0;
  uint64_t header_offset_bytes = 0;  // where the local header begins, from the start of the archive
  uint32_t crc32 = 0;
  friend bool operator==(const ZipRecord&, const ZipRecord&) = default;
};

/// Data of members begins at multiples of this, as in the archives that torch writes.
inline constexpr uint64_t kZipAlignmentBytes = 64;

/// True if `bytes` start with a local header.
bool StartsWithZipHeader(std::span<const std::byte> bytes);

/// Returns the local header of a member, padded so that its data is aligned. The header leaves the
/// checksum and the length to the descriptor. Requires a name of fewer than 64 KiB.
std::string EncodeZipHeader(const ZipRecord& record);

struct ZipHeader {
  std::string_view name;
  uint64_t header_bytes = 0;  // its length; the data follows
  bool is_stored = false;
};
/// Returns nothing if `bytes` do not start with a complete local header.
std::optional<ZipHeader> DecodeZipHeader(std::span<const std::byte> bytes);

/// Returns the descriptor that follows the data of a member.
std::string EncodeZipDescriptor(const ZipRecord& record);

/// Returns the directory and the end records of an archive whose directory begins at
/// `offset_bytes`.
std::string EncodeZipDirectory(std::span<const ZipRecord> records, uint64_t offset_bytes);

struct ZipDirectory {
  std::vector<ZipRecord> records;
  uint64_t offset_bytes = 0;  // where the directory begins
};
/// Decodes the directory of an archive. `tail` is its end, or all of it, and begins at
/// `tail_offset_bytes` of the archive. kDataLoss: not an archive, or a damaged one. kUnimplemented:
/// compressed or encrypted members, several disks; the message names the member. Memory:
/// proportional to the directory.
Result<ZipDirectory> DecodeZipDirectory(std::span<const std::byte> tail,
                                        uint64_t tail_offset_bytes);

}  // namespace cairn::core::internal
