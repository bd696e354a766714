// Persistent worker threads.

#include "core/base/internal/worker_pool.h"

#include <algorithm>
#include <utility>

#include "kv/error.h"

namespace cairn::core::internal {

size_t WorkerPool::DefaultThreadCount() {
  return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, 8);
}

WorkerPool::WorkerPool(size_t thread_count) {
  for (size_t worker = 1; worker < thread_count; ++worker) {
    threads_.emplace_back([this, worker] { Loop(worker); });
  }
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::Run(size_t count, std::function<void(size_t, size_t)> work) {
  Start(count, std::move(work));
  Finish();
}

void WorkerPool::Start(size_t count, std::function<void(size_t, size_t)> work) {
  {
    const std::lock_guard lock(mutex_);
    CAIRN_CHECK(busy_ == 0 && next_ >= count_);
    work_ = std::move(work);
    count_ = count;
    next_ = 0;
    // Waking threads for one item costs more than the item.
    if (count <= 1 || threads_.empty()) return;
    busy_ = threads_.size();
    ++round_;
  }
  changed_.notify_all();
}

void WorkerPool::Finish() {
  for (size_t i = next_++; i < count_; i = next_++) work_(i, 0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return busy_ == 0; });
}

void WorkerPool::Loop(size_t worker) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    lock.unlock();
    for (size_t i = next_++; i < count_; i = next_++) work_(i, worker);
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace cairn::core::internal
