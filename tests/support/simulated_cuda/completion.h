#pragma once
/// The completion of an operation of a stream: a flag that is set once.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace cairn::simulated_cuda {

/// Threads: all members are safe. What happened before Finish is visible to threads that see the
/// flag set.
class Completion {
 public:
  void Finish() {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    finished_ = true;
    finished_at_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  bool Finished() const {
    const std::lock_guard lock(mutex_);
    return finished_;
  }
  void Wait() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_; });
  }
  /// Requires Finished.
  std::chrono::steady_clock::time_point finished_at() const {
    const std::lock_guard lock(mutex_);
    return finished_at_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool finished_ = false;
  std::chrono::steady_clock::time_point finished_at_;
};

using CompletionPtr = std::shared_ptr<Completion>;

}  // namespace cairn::simulated_cuda
