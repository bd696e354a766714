#pragma once
// SPDX-License-Identifier: Apache-2.0
/// A way to end calls over NCCL from another thread, and to find out whether one has failed.

#include <atomic>
#include <string>
#include <utility>

#include "kv/base/mutex.h"

namespace cairn::cuda {

/// The stop flag of a communicator and of the communicators split from it. Other threads use it to
/// end calls, for example after a signal or when a rank has died, which NCCL itself does not
/// detect.
///
/// Threads: all members are safe, also during calls.
class NcclStop {
 public:
  /// Makes the current call, which may be connecting, and all later calls fail with kUnavailable
  /// and the message `why`, within a few milliseconds plus the time of NCCL's abort. Does not
  /// inform the other ranks. Only the first request has an effect.
  void Request(std::string why) {
    const MutexLock lock(mutex_);
    if (is_requested_) return;
    why_ = std::move(why);
    is_requested_ = true;
  }
  bool is_requested() const { return is_requested_; }
  std::string why() const {
    const MutexLock lock(mutex_);
    return why_;
  }

  /// Returns true once a call has failed, whether it broke its communicator or failed before it
  /// sent anything. The other ranks may then wait for this rank until their deadlines.
  bool has_failed() const { return has_failed_; }
  void NoteFailure() { has_failed_ = true; }

 private:
  std::atomic<bool> is_requested_ = false;
  std::atomic<bool> has_failed_ = false;
  mutable Mutex mutex_;
  std::string why_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::cuda
