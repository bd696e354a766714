#pragma once
/// Replacing a file so that a reader, or a crash, sees the old one or the whole new one.

#include <memory>
#include <span>
#include <string>

#include "kv/error.h"

namespace cairn::core::internal {

/// Writes to a temporary beside `path`; Finish syncs it, renames it and syncs the directory, in
/// that order. Without Finish the destructor removes it. Threads: one at a time.
class DurableFile {
 public:
  static Result<std::unique_ptr<DurableFile>> Create(const std::string& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  Result<void> Write(std::span<const std::byte> bytes);
  Result<void> Finish();
  /// True once the file stands under its name, which Finish may be and fail all the same.
  bool is_in_place() const { return temporary_.empty(); }

 private:
  DurableFile() = default;
  std::string path_;
  std::string temporary_;  // empty once renamed
  int file_ = -1;
};

/// Makes the names in a directory durable.
Result<void> SyncDirectory(const std::string& directory);

}  // namespace cairn::core::internal
