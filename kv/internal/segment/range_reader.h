#pragma once
/// Reads many ranges of segment files with deep queues and bounded memory.

#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "kv/block_pool.h"
#include "kv/error.h"
#include "kv/internal/io/block_io.h"
#include "kv/internal/io/file.h"
#include "kv/mutex.h"
#include "kv/options.h"
#include "kv/read_range.h"
#include "kv/thread_annotations.h"

namespace cairn::kv::internal {

/// A segment opened both ways: past the page cache, and through it for bytes that are there
/// already.
struct SegmentFile {
  File direct;  // may be buffered too, where O_DIRECT is refused
  File buffered;
};

/// Recently used segment files, so that many small loads do not open them again. Threads: safe.
class SegmentFiles {
 public:
  /// kNotFound if the file is gone.
  Result<std::shared_ptr<const SegmentFile>> Open(uint64_t segment_id, const std::string& path,
                                                  bool direct);
  void Forget(uint64_t segment_id);

 private:
  static constexpr size_t kMaxOpen = 64;
  using Entry = std::pair<uint64_t, std::shared_ptr<const SegmentFile>>;
  Mutex mutex_;
  std::list<Entry> recent_ CAIRN_GUARDED_BY(mutex_);  // newest first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> by_id_ CAIRN_GUARDED_BY(mutex_);
};

/// The file of a segment id. Threads: called from any.
using OpenSegment = std::function<Result<std::shared_ptr<const SegmentFile>>(uint64_t segment_id)>;

/// Reads all `ranges` with up to `threads` threads, this one among them; see Snapshot::Read.
/// Returns the bytes taken from storage.
Result<uint64_t> ReadRanges(std::span<const ReadRange> ranges, const IoOptions& options,
                            uint32_t threads, BlockPool& pool, const OpenSegment& open,
                            const RangeCallback& arrived);

}  // namespace cairn::kv::internal
