#pragma once
/// Writes zip archives as torch reads them: members are stored, and their data is aligned.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/interop/archive/internal/durable_file.h"
#include "core/interop/archive/internal/zip_records.h"

namespace cairn::core::internal {

/// Appends an archive to a file, which may already contain something else; offsets in the archive
/// count from its own beginning. Every member has a CRC-32; zip64 is used where it is needed.
///
/// Ownership: borrows the file, which the caller finishes. Threads: one.
class ZipWriter {
 public:
  explicit ZipWriter(DurableFile& file) : file_(&file) {}

  /// Writes a complete member. Requires that no member is open.
  Result<void> Add(const std::string& name, std::span<const std::byte> bytes);
  /// Opens a member of `length_bytes`. The caller passes exactly that many bytes to Append, then
  /// calls End. Requires that no member is open, and a name of fewer than 64 KiB.
  Result<void> Begin(const std::string& name, uint64_t length_bytes);
  /// Requires that the open member still lacks at least `bytes.size()` bytes.
  Result<void> Append(std::span<const std::byte> bytes);
  /// Requires a member that is open and complete.
  Result<void> End();
  /// Writes the directory. Requires that no member is open. Returns the length of the archive in
  /// bytes.
  Result<uint64_t> Finish();

 private:
  Result<void> Write(std::span<const std::byte> bytes);
  Result<void> Write(const std::string& bytes) { return Write(std::as_bytes(std::span(bytes))); }

  DurableFile* file_;
  uint64_t length_bytes_ = 0;   // of the archive so far
  bool is_open_ = false;        // there is an open member, the last one
  uint64_t missing_bytes_ = 0;  // of the open member
  std::vector<ZipRecord> members_;
};

}  // namespace cairn::core::internal
