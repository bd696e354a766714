#pragma once
/// Zip archives as torch reads them: stored members whose data begins at multiples of 64 bytes.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/interop/archive/internal/durable_file.h"

namespace cairn::core::internal {

/// An archive behind what the file holds already, and the offsets in it count from where it begins:
/// members one after another, each with a CRC-32 behind it; zip64 where it is needed.
///
/// Ownership: borrows the file, which the caller finishes. Threads: one.
class ZipWriter {
 public:
  static constexpr uint64_t kAlignmentBytes = 64;

  explicit ZipWriter(DurableFile& file) : file_(&file) {}

  /// A whole member. Requires that none is open.
  Result<void> Add(const std::string& name, std::span<const std::byte> bytes);
  /// A member of this length, whose bytes follow by Append until there are as many, and End.
  Result<void> Begin(const std::string& name, uint64_t length_bytes);
  Result<void> Append(std::span<const std::byte> bytes);
  Result<void> End();
  /// The directory of the members. Returns the length of the whole archive in bytes.
  Result<uint64_t> Finish();

 private:
  struct Member {
    std::string name;
    uint64_t length_bytes = 0;
    uint64_t header_bytes = 0;  // where the local header begins
    uint32_t crc32 = 0;
  };
  Result<void> Write(std::span<const std::byte> bytes);
  Result<void> Write(const std::string& bytes) { return Write(std::as_bytes(std::span(bytes))); }
  static std::string Record(const Member& member);

  DurableFile* file_;
  uint64_t at_ = 0;
  uint64_t left_bytes_ = 0;  // of the open member
  std::vector<Member> members_;
};

}  // namespace cairn::core::internal
