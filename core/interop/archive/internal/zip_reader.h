#pragma once
/// Reads zip archives as torch.save writes them: members are stored, not compressed.
///
/// An archive is hostile input: no part of it may refer to bytes outside the archive, no two
/// members may share bytes, and the local header of a member must agree with the directory.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/error.h"

namespace cairn::core::internal {

struct ZipMember {
  std::string name;
  uint32_t crc32 = 0;                // as recorded; not checked yet
  std::span<const std::byte> bytes;  // in the archive
};

/// Ownership: move-only; borrows the archive's bytes. Threads: immutable.
class ZipReader {
 public:
  ZipReader(ZipReader&&) = default;
  ZipReader& operator=(ZipReader&&) = default;
  ZipReader(const ZipReader&) = delete;
  ZipReader& operator=(const ZipReader&) = delete;

  /// Reads the directory and the local headers. kDataLoss: not an archive, or a damaged one.
  /// kUnimplemented: compressed or encrypted members, several disks; the message names the member.
  /// Memory: proportional to the directory.
  static Result<ZipReader> Open(std::span<const std::byte> archive);

  /// In the order of the directory.
  const std::vector<ZipMember>& members() const { return members_; }
  /// Returns null if no member has this name.
  const ZipMember* Find(std::string_view name) const;
  /// False if the writer computed no checksums: then all of them are recorded as 0.
  bool has_checksums() const { return has_checksums_; }

 private:
  ZipReader() = default;
  std::vector<ZipMember> members_;
  std::map<std::string_view, size_t> by_name_;  // views of names in members_
  bool has_checksums_ = false;
};

}  // namespace cairn::core::internal
