#pragma once
/// Makes the n-th fault point of kv fail or end the process, and lists the points that were passed.
///
///   {
///     ScopedFaults faults(FailNth(3, EIO));
///     ... the third point that is passed fails with EIO ...
///     EXPECT_TRUE(faults.fired());
///   }

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "kv/io/internal/fault_point.h"

namespace cairn::testing {

/// A point that was passed: its name, and how often that name has been passed, including this time.
struct FaultPass {
  std::string point;
  uint32_t occurrence = 0;
};

/// Returns what happens at a point (`total` counts all points from 1): 0 to continue, or an errno.
using FaultAction = std::function<int(const FaultPass& pass, uint32_t total)>;

inline FaultAction NoFault() {
  return [](const FaultPass&, uint32_t) { return 0; };
}
inline FaultAction FailNth(uint32_t n, int error_number) {
  return [=](const FaultPass&, uint32_t total) { return total == n ? error_number : 0; };
}
/// Everything fails from the n-th point on, as on a disk that is gone or full.
inline FaultAction FailFromNth(uint32_t n, int error_number) {
  return [=](const FaultPass&, uint32_t total) { return total >= n ? error_number : 0; };
}
inline FaultAction FailAt(std::string point, uint32_t occurrence, int error_number) {
  return [=](const FaultPass& pass, uint32_t) {
    return pass.point == point && pass.occurrence == occurrence ? error_number : 0;
  };
}
/// The process ends at once, without destructors, flushes or exit handlers.
inline FaultAction KillAt(std::string point, uint32_t occurrence) {
  return [=](const FaultPass& pass, uint32_t) {
    if (pass.point == point && pass.occurrence == occurrence) ::kill(::getpid(), SIGKILL);
    return 0;
  };
}

/// Installs an action for its scope. Only one may exist at a time; any thread may pass points.
class ScopedFaults {
 public:
  explicit ScopedFaults(FaultAction action) : action_(std::move(action)) {
    active_ = this;
    kv::internal::fault_hook = &ScopedFaults::Hook;
  }
  ~ScopedFaults() {
    kv::internal::fault_hook = nullptr;
    active_ = nullptr;
  }
  ScopedFaults(const ScopedFaults&) = delete;
  ScopedFaults& operator=(const ScopedFaults&) = delete;

  bool fired() const { return !fired_at_.empty(); }
  /// The first point that failed.
  const std::string& fired_at() const { return fired_at_; }
  const std::vector<FaultPass>& passes() const { return passes_; }

 private:
  static int Hook(const char* point) {
    ScopedFaults& self = *active_;
    std::lock_guard lock(self.mutex_);
    self.passes_.push_back({.point = point, .occurrence = ++self.counts_[point]});
    const int result =
        self.action_(self.passes_.back(), static_cast<uint32_t>(self.passes_.size()));
    if (result != 0 && self.fired_at_.empty()) self.fired_at_ = point;
    return result;
  }

  static inline ScopedFaults* active_ = nullptr;
  const FaultAction action_;
  std::mutex mutex_;
  std::vector<FaultPass> passes_;
  std::map<std::string, uint32_t> counts_;
  std::string fired_at_;
};

}  // namespace cairn::testing
