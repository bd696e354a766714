#include "kv/segment/internal/zero_ranges.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/base/thread_annotations.h"
#include "kv/io/worker_pool.h"

namespace cairn::kv::internal {
namespace {

class ZeroReader {
 public:
  ZeroReader(std::span<const ReadRange> ranges, std::span<const size_t> indices,
             const RangeCallback& arrived)
      : ranges_(ranges), indices_(indices), arrived_(arrived) {
    uint64_t lent_bytes = 0;
    for (const size_t i : indices) {
      if (ranges[i].target.empty()) lent_bytes = std::max(lent_bytes, ranges[i].lent_bytes);
    }
    zeros_.resize(lent_bytes);
  }

  void Work() {
    for (size_t next = next_++; next < indices_.size() && !has_failed_; next = next_++) {
      const size_t i = indices_[next];
      const ReadRange& range = ranges_[i];
      std::span<const std::byte> bytes = std::span(zeros_).first(range.lent_bytes);
      if (!range.target.empty()) {
        std::ranges::fill(range.target, std::byte{0});
        bytes = range.target;
      }
      if (Result<void> done = arrived_(i, bytes); !done) Fail(std::move(done).error());
    }
  }

  Result<void> result() {
    const MutexLock lock(mutex_);
    if (error_) return std::unexpected(*std::move(error_));
    return {};
  }

 private:
  void Fail(Error error) {
    const MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
    has_failed_ = true;
  }

  const std::span<const ReadRange> ranges_;
  const std::span<const size_t> indices_;
  const RangeCallback& arrived_;
  std::vector<std::byte> zeros_;  // to be lent
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> has_failed_ = false;
  Mutex mutex_;
  std::optional<Error> error_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace

Result<void> ReadZeros(std::span<const ReadRange> ranges, std::span<const size_t> indices,
                       uint32_t threads, const RangeCallback& arrived) {
  if (indices.empty()) return {};
  ZeroReader reader(ranges, indices, arrived);
  CAIRN_TRY(RunOnThreads(std::min<size_t>(threads, indices.size()), "zeros", [&](size_t) {
    reader.Work();
    return Result<void>();
  }));
  return reader.result();
}

}  // namespace cairn::kv::internal
