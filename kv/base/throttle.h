#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A limit of bytes per second, which several copies may share.

#include <chrono>
#include <cstdint>

#include "kv/base/mutex.h"
#include "kv/base/thread_annotations.h"

namespace cairn::kv {

/// A token bucket of kBurst: after a pause, the bytes of this time may pass at once. Threads: safe.
class Throttle {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBurst{100};

  /// 0: there is no limit.
  explicit Throttle(uint64_t bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  /// Reserves `bytes`, and returns when the caller may transfer them.
  Clock::time_point Reserve(uint64_t bytes, Clock::time_point now);
  /// Returns the sum of all reservations.
  uint64_t reserved_bytes() const;

 private:
  const uint64_t bytes_per_second_;
  mutable Mutex mutex_;
  Clock::time_point next_ CAIRN_GUARDED_BY(mutex_){};  // when all that was reserved has passed
  uint64_t reserved_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::kv
