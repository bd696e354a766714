// Persistent worker threads.

#include "core/internal/worker_pool.h"

#include <algorithm>

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

void WorkerPool::Run(size_t count, const std::function<void(size_t, size_t)>& work) {
  // Waking threads for one item costs more than the item.
  if (count <= 1 || threads_.empty()) {
    for (size_t i = 0; i < count; ++i) work(i, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    count_ = count;
    next_ = 0;
    busy_ = threads_.size();
    ++round_;
  }
  changed_.notify_all();
  for (size_t i = next_++; i < count; i = next_++) work(i, 0);
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
    const auto* work = work_;
    const size_t count = count_;
    lock.unlock();
    for (size_t i = next_++; i < count; i = next_++) (*work)(i, worker);
    lock.lock();
    if (--busy_ == 0) changed_.notify_all();
  }
}

}  // namespace cairn::core::internal
