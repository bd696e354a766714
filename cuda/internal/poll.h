#pragma once
/// Waiting with a deadline: polls, at first often and then less often.

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "kv/base/error.h"

namespace cairn::cuda::internal {

using Deadline = std::chrono::steady_clock::time_point;

/// Returns now + `timeout`. Timeouts of more than a year become a year, so that the sum does not
/// overflow.
inline Deadline DeadlineAfter(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::days(365);
  return std::chrono::steady_clock::now() + std::min(timeout, kLongest);
}

/// Calls `ask()`, which returns Result<bool>, until it returns true or an error. Returns false at
/// the deadline. Calls it at least once. Cost: short waits spin; long ones wake up every 0.5 ms.
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

/// Calls `ask()` until it returns true or an error. kUnavailable: the deadline passed; the message
/// states `what` was attempted.
template <typename Ask>
Result<void> Await(const Ask& ask, const char* what, Deadline deadline) {
  CAIRN_TRY_ASSIGN(const bool done, PollUntil(deadline, ask));
  if (done) return {};
  return Fail(ErrorCode::kUnavailable,
              std::string(what) + ": the deadline passed; a rank is late, hangs or has died, or " +
                  "the ranks made different calls");
}

}  // namespace cairn::cuda::internal
