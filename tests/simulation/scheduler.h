#pragma once
/// Threads of several simulated processes as fibers of one thread, and their virtual clock.
///
/// A task runs until it sleeps, waits or ends. The scheduler then continues the task whose wake-up
/// time is the lowest, and moves the clock to this time; among equal times, a random number
/// decides. So a seed determines everything that happens, and waiting takes no time.
///
/// virtual_threads.cc makes the C library's threads, mutexes, condition variables, sleeps, clocks
/// and random numbers those of the scheduler, for all code of the program that runs in a task.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/support/fiber.h"

namespace cairn::simulation {

inline constexpr int64_t kMillisecondNs = 1'000'000;
inline constexpr int64_t kSecondNs = 1'000 * kMillisecondNs;

/// A simulated process on its own host.
struct Process {
  uint32_t id = 0;
  std::string name;  // for the trace
  /// Killed: its storage performs nothing any more, and its tasks run to their end, so that they
  /// release what they own.
  bool is_dead = false;
  int64_t paused_until_ns = 0;  // none of its tasks runs before
  int64_t clock_error_ns = 0;   // of the time of day on its host
};

/// A thread of a process.
struct Task {
  uint64_t id = 0;
  Process* process = nullptr;
  std::function<void()> body;
  testing::Fiber* fiber = nullptr;
  bool has_ended = false;
  bool is_detached = false;
  // The current wait. Its number makes entries of earlier waits in the queue obsolete.
  uint64_t wait = 0;
  const void* address = nullptr;  // null: sleeps
  bool timed_out = false;
};

/// Threads: all members belong to the thread that created it.
class Scheduler {
 public:
  explicit Scheduler(uint64_t seed);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Returns the scheduler whose task is running in this thread, or null outside of tasks.
  static Scheduler* Running();

  /// Adds a process, which lives as long as the scheduler.
  Process& AddProcess(std::string name);
  /// Adds a task, which is ready to run.
  Task& Spawn(Process& process, std::function<void()> body);
  /// Runs tasks until all have ended. Returns false if tasks wait for each other, or if there were
  /// more than `max_switch_count` switches; then the tasks that are left never run again, and what
  /// they own is lost.
  bool Run(uint64_t max_switch_count);

  // For the running task.

  Task& current() { return *current_; }
  Process& process() { return *current_->process; }
  void SleepFor(int64_t duration_ns);
  void Yield() { SleepFor(0); }
  /// Waits until Wake is called with this address, at most until `deadline_ns`. Returns false if
  /// the deadline has passed. May return early.
  bool WaitFor(const void* address, std::optional<int64_t> deadline_ns = std::nullopt);
  /// Continues one task or all tasks that wait for this address.
  void WakeOne(const void* address);
  void WakeAll(const void* address);
  /// Waits until the task has ended, and forgets it.
  void Join(Task& task);

  // Also outside of tasks.

  /// Returns the time, in nanoseconds since 1970.
  int64_t now_ns() const { return now_ns_; }
  std::mt19937_64& random() { return random_; }
  /// Uniform in [low, high].
  uint64_t Between(uint64_t low, uint64_t high);
  bool Chance(double probability);

 private:
  struct Entry {
    int64_t time_ns = 0;
    uint64_t order = 0;
    Task* task = nullptr;
    uint64_t wait = 0;
    bool operator>(const Entry& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : order > other.order;
    }
  };
  class FiberPool;

  void Schedule(Task& task, int64_t time_ns);
  void Wake(Task& task);
  /// Leaves the running task until it is continued.
  void Suspend();
  void Continue(Task& task);
  void RunBodies(testing::Fiber*& self);

  std::mt19937_64 random_;
  int64_t now_ns_;
  uint64_t switch_count_ = 0;
  std::deque<Process> processes_;
  uint64_t task_count_ = 0;
  uint64_t wait_count_ = 0;
  std::unordered_map<const Task*, std::unique_ptr<Task>> tasks_;  // until they are joined
  size_t running_count_ = 0;                                      // tasks that have not ended
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::unordered_map<const void*, std::vector<Task*>> waiting_;
  Task* current_ = nullptr;
  testing::Fiber* main_ = nullptr;
};

}  // namespace cairn::simulation
