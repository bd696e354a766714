#pragma once
/// The order in which ranges are read, and how workers share them.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/base/read_range.h"

namespace cairn::kv::internal {

/// Ranges in the order of their segments and offsets. The first and the last one may be in the
/// batch in part.
struct ReadBatch {
  std::span<const size_t> ranges;  // indices
  uint64_t begin_bytes = 0;        // in the first range
  uint64_t end_bytes = 0;          // in the last range
};

/// Divides ranges into batches. Every byte of every range is in exactly one batch.
/// Threads: all members may run on many threads at once.
class ReadBatches {
 public:
  /// With `window_bytes`, a batch is what ranges of one segment need between two multiples of it;
  /// ranges without a target are not divided, and may end after the window in which they begin.
  /// Without (0), a batch consists of complete ranges of some MiB. `ranges` must outlive this.
  ReadBatches(std::span<const ReadRange> ranges, uint64_t window_bytes);

  /// Returns the next batch; one without ranges at the end and after Stop.
  ReadBatch Take();
  /// Makes the other workers stop after an error.
  void Stop();

 private:
  ReadBatch TakeRanges() CAIRN_REQUIRES(mutex_);
  ReadBatch TakeWindow() CAIRN_REQUIRES(mutex_);

  const std::span<const ReadRange> ranges_;
  const uint64_t window_bytes_;
  std::vector<size_t> order_;
  Mutex mutex_;
  size_t next_ CAIRN_GUARDED_BY(mutex_) = 0;           // in order_
  uint64_t taken_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;  // taken from that range
};

}  // namespace cairn::kv::internal
