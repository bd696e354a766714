#pragma once
/// The lock of the one writer.

#include <memory>
#include <string>
#include <utility>

#include "kv/error.h"
#include "kv/file_descriptor.h"

namespace cairn::kv::internal {

/// An exclusive lock on a file, held until destroyed, gone when the process dies.
///
/// A POSIX record lock, because it does not pass to forked children (a data loader that outlives a
/// killed trainer would keep a flock). Such locks do not exclude the same process and fall when it
/// closes any descriptor of the file, so a table of held paths does the first and nothing but this
/// class opens the file.
class LockFile {
 public:
  /// kConflict at once, naming the holder, if somebody has it.
  static Result<std::unique_ptr<LockFile>> Acquire(const std::string& path);
  ~LockFile();
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

 private:
  LockFile(FileDescriptor file, std::string identity)
      : file_(std::move(file)), identity_(std::move(identity)) {}
  FileDescriptor file_;
  std::string identity_;
};

}  // namespace cairn::kv::internal
