#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Options and reports of copies of steps (kv/copy_steps.h).

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"

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
  /// Reserves `bytes`, and waits until the caller may transfer them. Calls `check` before and
  /// during the wait, at least every 50 ms, and returns its error.
  Result<void> Await(uint64_t bytes, const std::function<Result<void>()>& check);
  /// Returns the sum of all reservations.
  uint64_t reserved_bytes() const;

 private:
  const uint64_t bytes_per_second_;
  mutable Mutex mutex_;
  Clock::time_point next_ CAIRN_GUARDED_BY(mutex_){};  // when all that was reserved has passed
  uint64_t reserved_bytes_ CAIRN_GUARDED_BY(mutex_) = 0;
};

/// How far a copy is.
struct CopyProgress {
  uint64_t step = 0;        // being copied
  uint64_t done_bytes = 0;  // bytes of this step's segments that the target lacks
  uint64_t total_bytes = 0;
};

struct CopyOptions {
  std::vector<uint64_t> steps;
  /// The number of the copy, which then has no base step if it differs from the source's number.
  /// Empty: copies have the numbers of their sources. Requires exactly one step.
  std::optional<uint64_t> into;
  bool overwrite = false;  // replace steps of the target that have the number, but other contents
  bool skip_lost = false;  // if a step is damaged or does not exist, continue with the others
  uint32_t threads = 4;    // segments that are copied at once; at least 1
  uint64_t max_bytes_per_second = 0;  // limit of the payload in this call; 0: no limit
  /// If set: the limit, instead of the number above, of all calls that have the same throttle.
  std::shared_ptr<Throttle> throttle = nullptr;
  /// A segment that was finished is kept for the next copier at the latest after this time, and at
  /// the latest when all of them have this number of bytes. Each time costs a commit.
  std::chrono::milliseconds keep_interval{5'000};
  uint64_t keep_bytes = 1 << 30;
  /// Called before and after each block, and while the copy waits. Returns false to stop it. Calls
  /// do not overlap, but are made by several threads.
  std::function<bool(const CopyProgress&)> progress;
};

/// The outcome of the copy of one step.
struct CopiedStep {
  enum class Outcome : uint8_t {
    kCopied,
    kPresent,  // the target had it already
    kDeleted,  // the source was deleted during the copy; the target does not have it
  };
  uint64_t step = 0;  // in the target
  Outcome outcome = Outcome::kCopied;
  uint64_t logical_bytes = 0;    // payload of all chunks
  uint64_t copied_segments = 0;  // transferred by this call
  uint64_t copied_bytes = 0;     // length of these segments
  uint64_t reused_segments = 0;  // segments that the target had
  uint64_t table_bytes = 0;      // length of the new table
};

struct CopyReport {
  std::vector<CopiedStep> steps;  // ascending
  std::vector<Error> damaged;     // why others were not copied, each with its step; if `skip_lost`
};

}  // namespace cairn::kv
