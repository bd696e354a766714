#pragma once
/// Saves of several ranks run in the order in which they were asked for, whatever threads they run
/// on: else one rank might wait for the second attempt's parts while another waits for the first's
/// outcome.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>

namespace cairn::core::internal {

/// Threads: any.
class SaveQueue {
 public:
  /// Draws the next turn, while `draw` runs alone. Each turn that is drawn must be ended once.
  template <typename Draw>
  uint64_t Take(const Draw& draw) {
    const std::lock_guard lock(mutex_);
    draw();
    return next_++;
  }
  /// Waits until all turns before it have ended.
  void Await(uint64_t turn) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return serving_ == turn; });
  }
  void End(uint64_t turn) {
    {
      const std::lock_guard lock(mutex_);
      ended_.insert(turn);
      while (ended_.erase(serving_) > 0) ++serving_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  uint64_t next_ = 0;
  uint64_t serving_ = 0;
  std::set<uint64_t> ended_;  // out of order
};

}  // namespace cairn::core::internal
