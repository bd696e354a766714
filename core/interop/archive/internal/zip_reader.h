#pragma once
/// Zip archives as torch.save writes them: members that are stored, not compressed.
///
/// Format: PKWARE APPNOTE 6.3 (https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT), with
/// zip64. An archive is hostile input: nothing in it leads outside its bytes, no two members share
/// bytes, and the local header of a member must say what the directory says.

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
  uint32_t crc32 = 0;                // as recorded, not yet checked
  std::span<const std::byte> bytes;  // in the archive
};

/// True if the bytes begin as those of an archive with members do.
bool LooksLikeZip(std::span<const std::byte> bytes);

/// Ownership: move-only; borrows the archive's bytes. Threads: immutable.
class ZipReader {
 public:
  ZipReader(ZipReader&&) = default;
  ZipReader& operator=(ZipReader&&) = default;
  ZipReader(const ZipReader&) = delete;
  ZipReader& operator=(const ZipReader&) = delete;

  /// kDataLoss: not an archive, or a damaged one. kUnimplemented: compressed or encrypted members,
  /// several disks; names the member. Memory: in proportion to the directory.
  static Result<ZipReader> Open(std::span<const std::byte> archive);

  /// In the order of the directory.
  const std::vector<ZipMember>& members() const { return members_; }
  /// Null if there is none of this name.
  const ZipMember* Find(std::string_view name) const;
  /// False where the writer was told to compute no checksums: all are recorded as 0.
  bool has_checksums() const { return has_checksums_; }

 private:
  ZipReader() = default;
  std::vector<ZipMember> members_;
  std::map<std::string_view, size_t> by_name_;  // views of names in members_
  bool has_checksums_ = false;
};

}  // namespace cairn::core::internal
