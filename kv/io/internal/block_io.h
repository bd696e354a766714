#pragma once
/// Reads and writes of files, and queues of them.

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/io/io_queue.h"

namespace cairn::kv::internal {

/// Performs a request with `fd` on this thread, in several calls if one transfers fewer bytes.
IoCompletion TransferNow(const IoRequest& request);

/// Returns a queue for requests with `fd`. Uses io_uring if `uring` is set and the kernel allows
/// it, otherwise a pool of threads. Requires `depth > 0`.
std::unique_ptr<IoQueue> MakeFileQueue(bool uring, uint32_t depth);

/// Keeps a few rings of io_uring for their next users, because the kernel takes as long to create
/// and to remove one as for a small write. A forked child does not use the rings of its parent.
/// Threads: any.
class FileQueues {
 public:
  explicit FileQueues(bool uring) : uring_(uring) {}
  ~FileQueues();
  FileQueues(const FileQueues&) = delete;
  FileQueues& operator=(const FileQueues&) = delete;

  /// Returns a queue as MakeFileQueue does.
  std::unique_ptr<IoQueue> Take(uint32_t depth);
  /// Keeps `queue` and returns it if it can be used again. Otherwise destroys it and returns null.
  /// It may be null or of objects.
  IoQueue* Give(std::unique_ptr<IoQueue> queue);

 private:
  bool is_forked() const { return ::getpid() != owner_; }

  const bool uring_;
  const pid_t owner_ = ::getpid();
  Mutex mutex_;
  std::vector<std::unique_ptr<IoQueue>> idle_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::internal
