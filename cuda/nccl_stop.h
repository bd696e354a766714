#pragma once
/// Ends calls over NCCL from another thread, and tells whether one has failed.

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

namespace cairn::cuda {

/// What a communicator shares with those split from it, and with whoever may have to end its calls:
/// a signal, or the news that a rank is gone, which NCCL itself does not tell.
///
/// Threads: any, beside calls.
class NcclStop {
 public:
  /// The call that is under way, connecting too, and each later one fail with kUnavailable, which
  /// says `why`; within a few milliseconds, but for NCCL's own abort. The other ranks are not told.
  void Request(std::string why) {
    const std::lock_guard lock(mutex_);
    if (is_requested_) return;
    why_ = std::move(why);
    is_requested_ = true;
  }
  bool is_requested() const { return is_requested_; }
  std::string why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

  /// True once a call has failed, by breaking its communicator or before anything was sent: the
  /// other ranks may wait for this one until their deadlines.
  bool has_failed() const { return has_failed_; }
  void NoteFailure() { has_failed_ = true; }

 private:
  std::atomic<bool> is_requested_ = false;
  std::atomic<bool> has_failed_ = false;
  mutable std::mutex mutex_;
  std::string why_;  // guarded by mutex_
};

}  // namespace cairn::cuda
