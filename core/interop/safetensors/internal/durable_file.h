#pragma once
/// Writes a file so that readers, also after a crash, see the complete new file or none of it.
///
/// A DurableFile removes its temporary file after an error, because nothing recovers the directory
/// of an export.

#include <memory>
#include <span>
#include <string>

#include "kv/base/error.h"
#include "kv/io/file_descriptor.h"

namespace cairn::core::internal {

/// Writes to a new temporary file "PATH.<random number>.tmp" in the same directory. `Finish` syncs
/// it, renames it to `path` and syncs the directory, in that order. The destructor removes an
/// unfinished file. Threads: one at a time.
class DurableFile {
 public:
  /// kNotFound, kUnavailable, kResourceExhausted: the file cannot be created.
  static Result<std::unique_ptr<DurableFile>> Create(const std::string& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  /// Appends bytes. Requires that Finish was not called. kUnavailable, kResourceExhausted: they
  /// cannot be written.
  Result<void> Write(std::span<const std::byte> bytes);
  /// Requires that Finish was not called. kUnavailable, kResourceExhausted: the file or its
  /// directory cannot be made durable.
  Result<void> Finish();

 private:
  DurableFile() = default;
  std::string path_;
  std::string temporary_;  // empty once it has been renamed
  kv::FileDescriptor file_;
};

/// Makes the names in a directory durable. kNotFound, kUnavailable: it cannot be opened or synced.
Result<void> SyncDirectory(const std::string& directory);

}  // namespace cairn::core::internal
