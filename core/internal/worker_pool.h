#pragma once
/// A few persistent threads that share out the items of one loop at a time.

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cairn::core::internal {

/// Ownership: owns its threads, which the destructor joins. Threads: one Run at a time.
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
  void Run(size_t count, const std::function<void(size_t, size_t)>& work);

  size_t thread_count() const { return threads_.size() + 1; }

  /// All cores, at most 8: memory bandwidth ends there.
  static size_t DefaultThreadCount();

 private:
  void Loop(size_t worker);

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  const std::function<void(size_t, size_t)>* work_ = nullptr;
  size_t count_ = 0;
  uint64_t round_ = 0;
  size_t busy_ = 0;
  bool stop_ = false;
  // Items are handed out by this counter.
  std::atomic<size_t> next_{0};
  std::vector<std::thread> threads_;
};

}  // namespace cairn::core::internal
