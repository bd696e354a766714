#include "kv/internal/copy/throttle.h"

#include <algorithm>

namespace cairn::kv::internal {

Throttle::Clock::time_point Throttle::Reserve(uint64_t bytes, Clock::time_point now) {
  if (bytes_per_second_ == 0) return now;
  const auto duration = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second_)));
  const MutexLock lock(mutex_);
  const Clock::time_point begin = std::max(next_, now - kBurst);
  next_ = begin + duration;
  return std::max(begin, now);
}

}  // namespace cairn::kv::internal
