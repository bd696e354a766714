#include "kv/segment/internal/read_batches.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "kv/base/div.h"

namespace cairn::kv::internal {
namespace {

// Size of a batch of complete ranges. Small enough that all workers end at about the same time,
// large enough that requests are sequential; the bytes of a batch are still in the cache when they
// are digested.
constexpr uint64_t kBatchBytes = 4 << 20;

// Returns whether the batch of [begin, end) continues with this range. A range without a target
// that ends later begins the next batch. So does a range that is inside a longer one before it, and
// begins before the window.
bool IsInWindow(const ReadRange& range, uint64_t begin, uint64_t end) {
  const uint64_t needed_bytes = range.target.empty() ? range.lent_bytes : 1;
  return range.offset_bytes >= begin && range.offset_bytes + needed_bytes <= end;
}

}  // namespace

ReadBatches::ReadBatches(std::span<const ReadRange> ranges, uint64_t window_bytes)
    : ranges_(ranges), window_bytes_(window_bytes), order_(ranges.size()) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::ranges::sort(order_, [&](size_t a, size_t b) {
    return std::tie(ranges[a].segment_id, ranges[a].offset_bytes) <
           std::tie(ranges[b].segment_id, ranges[b].offset_bytes);
  });
}

ReadBatch ReadBatches::Take() {
  const MutexLock lock(mutex_);
  if (next_ == order_.size()) return {};
  return window_bytes_ == 0 ? TakeRanges() : TakeWindow();
}

void ReadBatches::Stop() {
  const MutexLock lock(mutex_);
  next_ = order_.size();
}

ReadBatch ReadBatches::TakeRanges() {
  const size_t begin = next_;
  for (uint64_t bytes = 0; next_ < order_.size() && bytes < kBatchBytes; ++next_) {
    bytes += ranges_[order_[next_]].length_bytes();
  }
  return {.ranges = std::span(order_).subspan(begin, next_ - begin),
          .end_bytes = ranges_[order_[next_ - 1]].length_bytes()};
}

ReadBatch ReadBatches::TakeWindow() {
  const size_t begin = next_;
  const ReadRange& first = ranges_[order_[begin]];
  const uint64_t window_begin = RoundDown(first.offset_bytes + taken_bytes_, window_bytes_);
  const uint64_t window_end = window_begin + window_bytes_;
  ReadBatch batch{.begin_bytes = taken_bytes_};
  do {
    const ReadRange& range = ranges_[order_[next_]];
    const bool is_divided =
        !range.target.empty() && range.offset_bytes + range.target.size() > window_end;
    batch.end_bytes = is_divided ? window_end - range.offset_bytes : range.length_bytes();
    batch.ranges = std::span(order_).subspan(begin, next_ + 1 - begin);
    taken_bytes_ = is_divided ? batch.end_bytes : 0;
    if (is_divided) return batch;
    ++next_;
  } while (next_ < order_.size() && ranges_[order_[next_]].segment_id == first.segment_id &&
           IsInWindow(ranges_[order_[next_]], window_begin, window_end));
  return batch;
}

}  // namespace cairn::kv::internal
