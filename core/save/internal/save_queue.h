#pragma once
/// Runs the saves of a multi-rank store in the order in which they were requested, on whatever
/// threads they run. Otherwise one rank could wait for the parts of its second attempt while
/// another rank waits for the decision about its first.

#include <cstdint>
#include <set>

#include "kv/base/error.h"
#include "kv/base/mutex.h"

namespace cairn::core::internal {

/// Threads: all members are safe.
class SaveQueue {
 public:
  /// Returns the next position in the queue. `on_enter` runs under the lock, so that names that it
  /// generates are in the order of the queue. Requires one call of Leave for each position.
  template <typename OnEnter>
  uint64_t Enter(const OnEnter& on_enter) {
    const MutexLock lock(mutex_);
    on_enter();
    return end_++;
  }
  /// Waits until all earlier positions have left.
  void AwaitTurn(uint64_t position) {
    const MutexLock lock(mutex_);
    while (front_ != position) changed_.Wait(mutex_);
  }
  /// Removes a position, in any order.
  void Leave(uint64_t position) {
    {
      const MutexLock lock(mutex_);
      CAIRN_CHECK(position >= front_ && position < end_);
      left_.insert(position);
      while (left_.erase(front_) > 0) ++front_;
    }
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t front_ CAIRN_GUARDED_BY(mutex_) = 0;
  uint64_t end_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> left_ CAIRN_GUARDED_BY(mutex_);  // positions behind front_ that have left
};

}  // namespace cairn::core::internal
