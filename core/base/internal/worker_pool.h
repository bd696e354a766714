#pragma once
/// A few persistent threads that divide the items of one loop at a time among them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::core::internal {

/// Ownership: owns its threads, which the destructor joins. Threads: one call at a time.
class WorkerPool {
 public:
  /// `thread_count` includes the thread that calls Run; with 1 the pool has no threads. If the
  /// system has no more threads, the pool has fewer.
  explicit WorkerPool(size_t thread_count);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Calls work(i, worker) for every i in [0, count), in any order, on up to thread_count()
  /// threads. `worker` is less than thread_count(); concurrent calls have different ones. Returns
  /// once all calls have returned. Throws the first std::exception of a call; further calls are
  /// then left out.
  void Run(size_t count, std::function<void(size_t, size_t)> work);

  /// Starts the loop of Run on the other threads and returns. The caller takes part in it when it
  /// calls Finish. Requires that Finish was called for the previous loop.
  void Start(size_t count, std::function<void(size_t, size_t)> work);
  /// Works on the loop that Start began, and returns once all its calls have returned; at once if
  /// there is none. Throws as Run does.
  void Finish();

  size_t thread_count() const { return threads_.size() + 1; }

  /// The number of cores, but at most 8: more do not increase memory bandwidth.
  static size_t DefaultThreadCount();

 private:
  void Loop(size_t worker);
  void Work(size_t worker);

  Mutex mutex_;
  CondVar changed_;
  uint64_t round_ CAIRN_GUARDED_BY(mutex_) = 0;
  size_t busy_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stop_ CAIRN_GUARDED_BY(mutex_) = false;
  std::exception_ptr thrown_ CAIRN_GUARDED_BY(mutex_);  // by a call of the current loop
  // Start writes these under mutex_ while no thread is busy. Busy threads, which have seen the new
  // round_ under mutex_, read them without it.
  std::function<void(size_t, size_t)> work_;
  size_t count_ = 0;
  // The next item that no thread has taken.
  std::atomic<size_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace cairn::core::internal
