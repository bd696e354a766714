// Chooses the task that runs next.

#include "tests/simulation/scheduler.h"

#include <algorithm>
#include <utility>

namespace cairn::simulation {
namespace {

using testing::Fiber;

constexpr size_t kStackBytes = 256 << 10;  // RocksDB has large frames
// 2030-01-01, so that times look like times.
constexpr int64_t kBeginNs = 1'893'456'000 * kSecondNs;

thread_local Scheduler* running = nullptr;

}  // namespace

/// The fibers of this thread. A fiber runs one body after another.
class Scheduler::FiberPool {
 public:
  static FiberPool& OfThisThread() {
    thread_local FiberPool pool;
    return pool;
  }
  Fiber& main() { return main_; }

  Fiber* Take() {
    if (idle_.empty()) {
      all_.push_back(std::make_unique<Fiber>(
          [] {
            for (;;) running->RunBodies(running->current_->fiber);
          },
          kStackBytes));
      return all_.back().get();
    }
    Fiber* const fiber = idle_.back();
    idle_.pop_back();
    return fiber;
  }
  void Return(Fiber* fiber) { idle_.push_back(fiber); }

 private:
  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> idle_;
};

Scheduler::Scheduler(uint64_t seed)
    : random_(seed), now_ns_(kBeginNs), main_(&FiberPool::OfThisThread().main()) {}

Scheduler::~Scheduler() = default;

Scheduler* Scheduler::Running() { return running; }

Process& Scheduler::AddProcess(std::string name) {
  processes_.push_back({.id = static_cast<uint32_t>(processes_.size()), .name = std::move(name)});
  return processes_.back();
}

Task& Scheduler::Spawn(Process& process, std::function<void()> body) {
  auto owned = std::make_unique<Task>();
  Task& task = *owned;
  task.id = task_count_++;
  task.wait = ++wait_count_;
  task.process = &process;
  task.body = std::move(body);
  tasks_[&task] = std::move(owned);
  ++running_count_;
  Schedule(task, now_ns_);
  return task;
}

bool Scheduler::Run(uint64_t max_switch_count) {
  while (running_count_ > 0) {
    if (queue_.empty() || switch_count_ >= max_switch_count) return false;
    const Entry entry = queue_.top();
    queue_.pop();
    if (!tasks_.contains(entry.task) || entry.task->wait != entry.wait) continue;
    Task& task = *entry.task;
    if (!task.process->is_dead && task.process->paused_until_ns > entry.time_ns) {
      Schedule(task, task.process->paused_until_ns);
      continue;
    }
    now_ns_ = std::max(now_ns_, entry.time_ns);
    Wake(task);
    Continue(task);
  }
  return true;
}

void Scheduler::SleepFor(int64_t duration_ns) {
  Schedule(*current_, now_ns_ + duration_ns);
  Suspend();
}

bool Scheduler::WaitFor(const void* address, std::optional<int64_t> deadline_ns) {
  Task& task = *current_;
  task.address = address;
  task.timed_out = true;  // unless it is woken
  waiting_[address].push_back(&task);
  if (deadline_ns) Schedule(task, std::max(now_ns_, *deadline_ns));
  Suspend();
  return !task.timed_out;
}

void Scheduler::WakeOne(const void* address) {
  const auto found = waiting_.find(address);
  if (found == waiting_.end()) return;
  Task& task = *found->second[Between(0, found->second.size() - 1)];
  Wake(task);
  task.timed_out = false;
  Schedule(task, now_ns_);
}

void Scheduler::WakeAll(const void* address) {
  while (waiting_.contains(address)) WakeOne(address);
}

void Scheduler::Join(Task& task) {
  while (!task.has_ended) WaitFor(&task);
  tasks_.erase(&task);
}

uint64_t Scheduler::Between(uint64_t low, uint64_t high) {
  return std::uniform_int_distribution<uint64_t>(low, high)(random_);
}

bool Scheduler::Chance(double probability) {
  return probability > 0 && std::bernoulli_distribution(probability)(random_);
}

void Scheduler::Schedule(Task& task, int64_t time_ns) {
  queue_.push({.time_ns = time_ns, .order = random_(), .task = &task, .wait = task.wait});
}

/// Ends the wait of the task.
void Scheduler::Wake(Task& task) {
  task.wait = ++wait_count_;
  if (task.address == nullptr) return;
  const auto found = waiting_.find(std::exchange(task.address, nullptr));
  std::erase(found->second, &task);
  if (found->second.empty()) waiting_.erase(found);
}

void Scheduler::Suspend() { current_->fiber->SwitchTo(*main_); }

void Scheduler::Continue(Task& task) {
  ++switch_count_;
  if (task.fiber == nullptr) task.fiber = FiberPool::OfThisThread().Take();
  current_ = &task;
  running = this;
  main_->SwitchTo(*task.fiber);
  running = nullptr;
  current_ = nullptr;
  if (!task.has_ended) return;
  FiberPool::OfThisThread().Return(task.fiber);
  if (task.is_detached) tasks_.erase(&task);
}

/// Runs the body of the current task, and leaves the fiber until it has another task.
void Scheduler::RunBodies(Fiber*& self) {
  Fiber& fiber = *self;
  current_->body();
  current_->body = nullptr;
  current_->has_ended = true;
  --running_count_;
  WakeAll(current_);
  fiber.SwitchTo(*main_);
}

}  // namespace cairn::simulation
