// The thread of a stream.
#include "tests/support/simulated_cuda/stream_queue.h"

#include <chrono>
#include <thread>
#include <utility>

namespace cairn::simulated_cuda {
namespace {

// Counts the running threads, so that Reset can wait for those of closed streams. Never destroyed:
// streams may outlive static objects.
struct RunningThreads {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
};

RunningThreads& Running() {
  static auto* const running = new RunningThreads;
  return *running;
}

}  // namespace

CompletionPtr StreamQueue::Enqueue(std::function<void()> run, std::vector<CompletionPtr> after) {
  auto done = std::make_shared<Completion>();
  const std::lock_guard lock(mutex_);
  queue_.push_back({std::move(run), std::move(after), done});
  tail_ = done;
  changed_.notify_one();
  if (!started_) {
    started_ = true;
    {
      const std::lock_guard running_lock(Running().mutex);
      ++Running().count;
    }
    std::thread([self = shared_from_this()] { self->Work(); }).detach();
  }
  return done;
}

CompletionPtr StreamQueue::tail() const {
  const std::lock_guard lock(mutex_);
  return tail_;
}

void StreamQueue::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_one();
}

void StreamQueue::WaitForClosedStreams() {
  std::unique_lock lock(Running().mutex);
  Running().changed.wait(lock, [] { return Running().count == 0; });
}

void StreamQueue::Work() {
  for (;;) {
    Operation operation;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) break;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    RunOne(operation);
  }
  const std::lock_guard lock(Running().mutex);
  --Running().count;
  Running().changed.notify_all();
}

void StreamQueue::RunOne(Operation& operation) {
  for (const CompletionPtr& before : operation.after) before->Wait();
  if (options_.jitter_us > 0) {
    const auto delay_us = random_() % static_cast<uint64_t>(options_.jitter_us + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  }
  if (operation.run) operation.run();
  operation.run = nullptr;  // destroys what it owns before others see the completion
  operation.done->Finish();
}

}  // namespace cairn::simulated_cuda
