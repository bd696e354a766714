#include "kv/base/copy_options.h"

#include <algorithm>
#include <thread>

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

Result<void> Throttle::Await(uint64_t bytes, const std::function<Result<void>()>& check) {
  constexpr std::chrono::milliseconds kSlice{50};
  CAIRN_TRY(check());
  auto now = Clock::now();
  const auto turn = Reserve(bytes, now);
  for (; now < turn; now = Clock::now()) {
    std::this_thread::sleep_until(std::min(turn, now + kSlice));
    CAIRN_TRY(check());
  }
  return {};
}

uint64_t Throttle::reserved_bytes() const {
  const MutexLock lock(mutex_);
  return reserved_bytes_;
}

}  // namespace cairn::kv
