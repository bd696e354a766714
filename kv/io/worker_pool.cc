// Threads that wait for the next round, and take items of the current one by a shared counter.

#include "kv/io/worker_pool.h"

#include <algorithm>
#include <utility>

#include "kv/base/catch_exhaustion.h"
#include "kv/io/internal/io_environment.h"

namespace cairn::kv {

uint32_t WorkerThreads(uint32_t least) {
  static const auto set =
      static_cast<uint32_t>(internal::WorkerThreadsFromEnvironment(0).value_or(0));
  return set != 0 ? set : std::clamp(std::thread::hardware_concurrency(), least, 8u);
}

Result<void> RunOnThreads(size_t count, const char* what,
                          const std::function<Result<void>(size_t)>& work, size_t max_threads) {
  Mutex mutex;
  size_t first_failed = count;
  Result<void> failure;
  std::atomic<bool> has_failed = false;
  WorkerPool(std::min(count, max_threads)).Run(count, [&](size_t i, size_t) {
    if (has_failed) return;
    Result<void> result = CatchExhaustion(what, [&] { return work(i); });
    if (result) return;
    has_failed = true;
    const MutexLock lock(mutex);
    if (i > first_failed) return;
    first_failed = i;
    failure = std::move(result);
  });
  return failure;
}

void ParallelFor(size_t count, std::function<void(size_t, size_t)> work, uint32_t least) {
  WorkerPool(std::min<size_t>(count, WorkerThreads(least))).Run(count, std::move(work));
}

WorkerPool::WorkerPool(size_t thread_count) {
  threads_.reserve(thread_count);
  for (size_t worker = 1; worker < thread_count; ++worker) {
    auto started = StartThread("a pool", [this, worker] { Loop(worker); });
    if (!started) return;  // the system has no more threads; fewer do the work
    threads_.push_back(*std::move(started));
  }
}

WorkerPool::~WorkerPool() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Run(size_t count, std::function<void(size_t, size_t)> work) {
  Start(count, std::move(work));
  Finish();
}

void WorkerPool::Start(size_t count, std::function<void(size_t, size_t)> work) {
  {
    const MutexLock lock(mutex_);
    CAIRN_CHECK(busy_ == 0 && next_ >= count_);
    work_ = std::move(work);
    count_ = count;
    next_ = 0;
    // Waking threads for one item costs more than the item.
    if (count <= 1 || threads_.empty()) return;
    busy_ = threads_.size();
    ++round_;
  }
  changed_.NotifyAll();
}

void WorkerPool::Finish() {
  Work(0);
  const MutexLock lock(mutex_);
  while (busy_ != 0) changed_.Wait(mutex_);
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

// An exception must not leave a thread, nor the call while others use what it borrows.
void WorkerPool::Work(size_t worker) {
  try {
    for (size_t i = next_++; i < count_; i = next_++) work_(i, worker);
  } catch (const std::exception&) {
    const MutexLock lock(mutex_);
    if (thrown_ == nullptr) thrown_ = std::current_exception();
    next_ = count_;
  }
}

void WorkerPool::Loop(size_t worker) {
  uint64_t seen = 0;
  MutexLock lock(mutex_);
  while (true) {
    while (!stop_ && round_ == seen) changed_.Wait(mutex_);
    if (stop_) return;
    seen = round_;
    lock.Unlock();
    Work(worker);
    lock.Lock();
    if (--busy_ == 0) changed_.NotifyAll();
  }
}

}  // namespace cairn::kv
