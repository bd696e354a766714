#pragma once
/// The lock of the writer.

#include <memory>
#include <string>
#include <utility>

#include "kv/error.h"
#include "kv/file_descriptor.h"

namespace cairn::kv::internal {

/// An exclusive lock on a file. It is released by the destructor or when the process ends. Threads:
/// as for a value; different objects may be used concurrently.
///
/// It is a POSIX record lock, because forked children do not inherit these (a data loader that
/// outlives a killed trainer would keep a flock). Record locks do not exclude the same process, so
/// a table of the locked paths does; and they are released when the process closes any descriptor
/// of the file, so only this class opens the file.
class LockFile {
 public:
  /// Locks the file at `path`, and creates it if it is absent. kConflict: another process, or this
  /// one, has the lock; the message names the holder. Does not wait.
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
