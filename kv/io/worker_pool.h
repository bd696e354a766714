#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The threads that digest, compress, read and copy payload, and their number.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "kv/base/error.h"
#include "kv/base/mutex.h"

namespace cairn::kv {

/// The one decision about the number of threads: CAIRN_THREADS (1 to 1024) of the environment;
/// otherwise the number of cores, at least `least` (for threads that mostly wait for the storage),
/// and at most 8: more do not increase memory bandwidth. docs/architecture.md lists the threads of
/// saves and loads. Threads: safe.
uint32_t WorkerThreads(uint32_t least = 1);

/// Calls `work(i)` for i from 0 to `count` - 1, and waits for all: on as many threads, but at most
/// `max_threads`, including the caller's, or on fewer if the system has no more. With one thread,
/// the calls are in this order. After an error, further calls may be left out. Returns the error of
/// the lowest i. kResourceExhausted: there was not enough memory for `what`.
Result<void> RunOnThreads(size_t count, const char* what,
                          const std::function<Result<void>(size_t i)>& work,
                          size_t max_threads = SIZE_MAX);

/// A few persistent threads that divide the items of one loop at a time among them.
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

/// Calls work(i, worker) for every i in [0, count) as WorkerPool::Run does, on a pool of
/// WorkerThreads(least) threads, but at most one per item.
void ParallelFor(size_t count, std::function<void(size_t, size_t)> work, uint32_t least = 1);

}  // namespace cairn::kv
