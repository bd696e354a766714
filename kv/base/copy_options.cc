#include "kv/base/copy_options.h"

#include <algorithm>

namespace cairn::kv {

Throttle::Clock::time_point Throttle::Reserve(uint64_t bytes, Clock::time_point now) {
  const MutexLock lock(mutex_);
  reserved_bytes_ += bytes;
  if (bytes_per_second_ == 0) return now;
  const auto duration = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
      static_cast<double>(bytes) / static_cast<double>(bytes_per_second_)));
  const Clock::time_point begin = std::max(next_, now - kBurst);
  next_ = begin + duration;
  return std::max(begin, now);
}

uint64_t Throttle::reserved_bytes() const {
  const MutexLock lock(mutex_);
  return reserved_bytes_;
}

}  // namespace cairn::kv
