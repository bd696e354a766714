#pragma once
/// Calls a Progress function seldom, and turns its "stop" into an error.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "core/base/progress.h"
#include "kv/error.h"

namespace cairn::core::internal {

/// Threads: any may Add; the function is called only from the thread that made the meter.
class ProgressMeter {
 public:
  ProgressMeter(const Progress& progress, uint64_t total_bytes)
      : progress_(progress), total_bytes_(total_bytes) {}

  /// kCancelled: the caller asked to stop.
  Result<void> Add(uint64_t bytes) {
    // Page rounding must not lead past the end.
    const uint64_t done = std::min(done_bytes_ += bytes, total_bytes_);
    if (!progress_ || std::this_thread::get_id() != caller_) return {};
    const auto now = std::chrono::steady_clock::now();
    if (done < total_bytes_ && now - last_ < std::chrono::milliseconds(50)) return {};
    last_ = now;
    if (progress_(done, total_bytes_)) return {};
    return Fail(ErrorCode::kCancelled, "stopped as asked");
  }

 private:
  const Progress& progress_;
  const uint64_t total_bytes_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<uint64_t> done_bytes_ = 0;
  std::chrono::steady_clock::time_point last_{};  // the caller's
};

}  // namespace cairn::core::internal
