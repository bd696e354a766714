#pragma once
/// Waits that end: asking again and again, less and less often, until a deadline.

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "kv/error.h"

namespace cairn::cuda::internal {

using Deadline = std::chrono::steady_clock::time_point;

/// Timeouts without end become a year, so that no sum overflows.
inline Deadline DeadlineAfter(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::days(365);
  return std::chrono::steady_clock::now() + std::min(timeout, kLongest);
}

/// True once `ask()`, a Result<bool>, says true; false at the deadline; its error if it has one.
/// Asks at least once. Cost: short waits spin, long ones wake two thousand times a second.
template <typename Ask>
Result<bool> PollUntil(Deadline deadline, const Ask& ask) {
  constexpr int kSpins = 100;
  constexpr std::chrono::microseconds kLongestPause(500);
  std::chrono::microseconds pause(4);
  for (int i = 0;; ++i) {
    CAIRN_TRY_ASSIGN(const bool done, ask());
    if (done) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    if (i < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
}

/// The same, where the deadline is an error: kUnavailable, naming `what` was attempted.
template <typename Ask>
Result<void> Await(const Ask& ask, const char* what, Deadline deadline) {
  CAIRN_TRY_ASSIGN(const bool done, PollUntil(deadline, ask));
  if (done) return {};
  return Fail(ErrorCode::kUnavailable,
              std::string(what) + ": the deadline passed; a rank is late, hangs or has died, or " +
                  "ranks call different things");
}

}  // namespace cairn::cuda::internal
