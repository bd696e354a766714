#pragma once
/// Open segments, kept open between reads.

#include <cstdint>
#include <memory>
#include <string>

#include "kv/base/error.h"
#include "kv/base/mutex.h"
#include "kv/base/recently_used.h"
#include "kv/io/internal/block_io.h"
#include "kv/io/internal/file.h"
#include "kv/io/io_queue.h"
#include "kv/storage/storage.h"

namespace cairn::kv::internal {

/// A segment that is open for reading. A file is open twice: for direct I/O, and for reads through
/// the page cache of bytes that are in it.
struct SegmentFile {
  bool is_object = false;  // in a storage without files; there are no descriptors
  std::string name;        // name of the object
  std::string path;        // for error messages
  File direct;             // also buffered, if the file system refuses O_DIRECT
  File buffered;
};

/// Returns a queue for transfers of segments. The caller passes it to `queues.Give` at the end.
Result<std::unique_ptr<IoQueue>> TakeSegmentQueue(Storage& storage, FileQueues& queues,
                                                  uint32_t depth);
/// Returns the error of a read of the segment `path`. kDataLoss: its disk is damaged.
Result<void> CheckRead(const IoCompletion& completion, const std::string& path);

/// A cache of open segment files, so that many small loads do not open them again. Threads: safe.
class SegmentFiles {
 public:
  /// Returns the open segment, and opens it if it is not in the cache. kNotFound: its file does not
  /// exist. An object is not looked for.
  Result<std::shared_ptr<const SegmentFile>> Open(uint64_t segment_id, Storage& storage,
                                                  const std::string& name, bool direct);
  /// Drops the file from the cache, before it is removed.
  void Forget(uint64_t segment_id);
  /// Drops the files that another process has removed, whose space on the disk is in use as long as
  /// they are open.
  void DropRemoved();

 private:
  using OpenFile = std::shared_ptr<const SegmentFile>;
  Mutex mutex_;
  RecentlyUsed<uint64_t, OpenFile, 64> open_ CAIRN_GUARDED_BY(mutex_);  // by segment id
};

}  // namespace cairn::kv::internal
