#pragma once
/// Limits how often a Progress function is called, and turns its request to stop into an error.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "core/base/progress.h"
#include "kv/base/error.h"

namespace cairn::core::internal {

/// Ownership: `progress` outlives it. Threads: any may call Add; the function is called only on the
/// thread that created the meter.
class ProgressMeter {
 public:
  /// Reports at least `floor_bytes`: what an earlier meter of the same operation has reported.
  ProgressMeter(const Progress& progress, uint64_t total_bytes, uint64_t floor_bytes = 0)
      : progress_(progress), total_bytes_(total_bytes), floor_bytes_(floor_bytes) {}

  /// Adds completed bytes. kCancelled: the Progress function returned false.
  Result<void> Add(uint64_t bytes) {
    // Rounding to pages can add more than the total.
    const uint64_t done = std::min(std::max(done_bytes_ += bytes, floor_bytes_), total_bytes_);
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
  const uint64_t floor_bytes_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<uint64_t> done_bytes_ = 0;
  std::chrono::steady_clock::time_point last_{};  // used only by the thread caller_
};

}  // namespace cairn::core::internal
