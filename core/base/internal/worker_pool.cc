// Threads that wait for the next round, and take items of the current one by a shared counter.

#include "core/base/internal/worker_pool.h"

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "kv/error.h"

namespace cairn::core::internal {

size_t WorkerPool::DefaultThreadCount() {
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 8);
}

WorkerPool::WorkerPool(size_t thread_count) {
  threads_.reserve(thread_count);
  try {
    for (size_t worker = 1; worker < thread_count; ++worker) {
      threads_.emplace_back([this, worker] { Loop(worker); });
    }
  } catch (const std::system_error&) {  // the system has no more threads; fewer do the work
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

}  // namespace cairn::core::internal
