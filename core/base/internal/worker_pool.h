#pragma once
/// A few persistent threads that share out the items of one loop at a time.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "kv/mutex.h"
#include "kv/thread_annotations.h"

namespace cairn::core::internal {

/// Ownership: owns its threads, which the destructor joins. Threads: all calls from one at a time.
class WorkerPool {
 public:
  /// `thread_count` includes the caller of Run; 1 means no threads at all.
  explicit WorkerPool(size_t thread_count);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Calls work(i, worker) for every i in [0, count), in any order, from up to thread_count()
  /// threads; `worker` is below thread_count() and no two calls at one time share it. Returns when
  /// all are done.
  void Run(size_t count, std::function<void(size_t, size_t)> work);

  /// The same in two steps: the caller may do something else while the other threads have begun,
  /// and joins in with Finish. Requires that what was started before is finished.
  void Start(size_t count, std::function<void(size_t, size_t)> work);
  /// Returns when all are done; at once if nothing was started.
  void Finish();

  size_t thread_count() const { return threads_.size() + 1; }

  /// All cores, at most 8: memory bandwidth ends there.
  static size_t DefaultThreadCount();

 private:
  void Loop(size_t worker);

  Mutex mutex_;
  CondVar changed_;
  uint64_t round_ CAIRN_GUARDED_BY(mutex_) = 0;
  size_t busy_ CAIRN_GUARDED_BY(mutex_) = 0;
  bool stop_ CAIRN_GUARDED_BY(mutex_) = false;
  // Start writes these under mutex_ while no thread is busy. Busy threads, which have seen the new
  // round_ under mutex_, read them without it.
  std::function<void(size_t, size_t)> work_;
  size_t count_ = 0;
  // Items are handed out by this counter.
  std::atomic<size_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace cairn::core::internal
