// The functions of the C library that concern threads, time, the identity of the process and random
// numbers. In a task of a scheduler they are simulated, for all code of this program and of its
// libraries; outside of tasks they are those of the C library.
//
// Since all tasks run in one thread, the real mutexes record who has locked them, and a task that
// cannot lock one waits until it is unlocked. Tasks share thread-local variables: code must not
// expect that they keep their value while it waits.

#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <string>

#include "kv/state/internal/process_id.h"
#include "tests/simulation/scheduler.h"

namespace cairn::simulation {
namespace {

// No process of this system has such a pid, so leases count as those of other hosts.
constexpr pid_t kFirstPid = 5'000'000;
constexpr int kProcessorCount = 4;

/// Returns the function of the C library with this name. `cache` remembers it: a static variable in
/// the caller would need a guard, which may call the functions below.
template <typename Function>
Function* Real(Function*& cache, const char* name) {
  if (cache == nullptr) {
    // The default is an older version, with another layout of the condition variable.
    void* found = ::dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    if (found == nullptr) found = ::dlsym(RTLD_NEXT, name);
    cache = reinterpret_cast<Function*>(found);
  }
  return cache;
}

int64_t Nanoseconds(const timespec& time) { return time.tv_sec * kSecondNs + time.tv_nsec; }
timespec ToTimespec(int64_t ns) { return {.tv_sec = ns / kSecondNs, .tv_nsec = ns % kSecondNs}; }

Task& TaskOf(pthread_t thread) { return *reinterpret_cast<Task*>(thread); }

template <typename TryLock, typename Mutex>
int LockInTask(Scheduler& scheduler, TryLock* try_lock, Mutex* mutex) {
  int error = try_lock(mutex);
  while (error == EBUSY) {
    scheduler.WaitFor(mutex);
    error = try_lock(mutex);
  }
  return error;
}

int WaitInTask(Scheduler& scheduler, pthread_cond_t* condition, pthread_mutex_t* mutex,
               std::optional<int64_t> deadline_ns) {
  ::pthread_mutex_unlock(mutex);
  const bool woken = scheduler.WaitFor(condition, deadline_ns);
  ::pthread_mutex_lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

/// Waits or wakes as futex(2) does; the caller checks its condition again.
long FutexInTask(Scheduler& scheduler, int* address, int operation, int value,
                 const timespec* timeout) {
  switch (operation & FUTEX_CMD_MASK) {
    case FUTEX_WAKE:
      value == INT_MAX ? scheduler.WakeAll(address) : scheduler.WakeOne(address);
      return 0;
    case FUTEX_WAIT:
    case FUTEX_WAIT_BITSET: {
      if (*address != value) {
        errno = EAGAIN;
        return -1;
      }
      std::optional<int64_t> deadline_ns;
      if (timeout != nullptr) {
        const bool is_relative = (operation & FUTEX_CMD_MASK) == FUTEX_WAIT;
        deadline_ns = Nanoseconds(*timeout) + (is_relative ? scheduler.now_ns() : 0);
      }
      if (scheduler.WaitFor(address, deadline_ns)) return 0;
      errno = ETIMEDOUT;
      return -1;
    }
    default:
      std::fprintf(stderr, "simulation: an unknown futex operation\n");
      std::abort();
  }
}

// Controls whose function is running in a task.
std::set<pthread_once_t*>& RunningOnce() {
  static auto& running = *new std::set<pthread_once_t*>;
  return running;
}

// The value that the C library gives to controls whose function has run.
constexpr pthread_once_t kOnceDone = 2;

}  // namespace
}  // namespace cairn::simulation

using cairn::simulation::Scheduler;
namespace simulation = cairn::simulation;

/// Begins a function of the C library, which is called itself outside of tasks. Defines
/// `scheduler`.
#define CAIRN_REAL_OUTSIDE_OF_TASKS(function, ...)   \
  static decltype(::function)* real;                 \
  Scheduler* const scheduler = Scheduler::Running(); \
  if (scheduler == nullptr) return simulation::Real(real, #function)(__VA_ARGS__)

extern "C" {

// Threads.

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_create, thread, attributes, start, argument);
  *thread = reinterpret_cast<pthread_t>(
      &scheduler->Spawn(scheduler->process(), [start, argument] { (void)start(argument); }));
  return 0;
}

int pthread_join(pthread_t thread, void** result) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_join, thread, result);
  scheduler->Join(simulation::TaskOf(thread));
  return 0;
}

int pthread_detach(pthread_t thread) noexcept {
  static decltype(::pthread_detach)* real;
  if (Scheduler::Running() == nullptr) return simulation::Real(real, "pthread_detach")(thread);
  simulation::TaskOf(thread).is_detached = true;
  return 0;
}

int sched_yield() noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(sched_yield);
  scheduler->Yield();
  return 0;
}

int get_nprocs() noexcept {
  static decltype(::get_nprocs)* real;
  if (Scheduler::Running() == nullptr) return simulation::Real(real, "get_nprocs")();
  return simulation::kProcessorCount;
}

// Mutexes and condition variables.

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static decltype(::pthread_mutex_trylock)* real_try;
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_mutex_lock, mutex);
  return simulation::LockInTask(*scheduler, simulation::Real(real_try, "pthread_mutex_trylock"),
                                mutex);
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  static decltype(::pthread_mutex_unlock)* real;
  const int error = simulation::Real(real, "pthread_mutex_unlock")(mutex);
  if (Scheduler* const scheduler = Scheduler::Running()) scheduler->WakeAll(mutex);
  return error;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static decltype(::pthread_rwlock_tryrdlock)* real_try;
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_rwlock_rdlock, lock);
  return simulation::LockInTask(*scheduler, simulation::Real(real_try, "pthread_rwlock_tryrdlock"),
                                lock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static decltype(::pthread_rwlock_trywrlock)* real_try;
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_rwlock_wrlock, lock);
  return simulation::LockInTask(*scheduler, simulation::Real(real_try, "pthread_rwlock_trywrlock"),
                                lock);
}

int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  static decltype(::pthread_rwlock_unlock)* real;
  const int error = simulation::Real(real, "pthread_rwlock_unlock")(lock);
  if (Scheduler* const scheduler = Scheduler::Running()) scheduler->WakeAll(lock);
  return error;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_cond_wait, condition, mutex);
  return simulation::WaitInTask(*scheduler, condition, mutex, std::nullopt);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* deadline) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_cond_timedwait, condition, mutex, deadline);
  return simulation::WaitInTask(*scheduler, condition, mutex, simulation::Nanoseconds(*deadline));
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* deadline) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_cond_clockwait, condition, mutex, clock, deadline);
  return simulation::WaitInTask(*scheduler, condition, mutex, simulation::Nanoseconds(*deadline));
}

int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_cond_signal, condition);
  scheduler->WakeOne(condition);
  return 0;
}

int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_cond_broadcast, condition);
  scheduler->WakeAll(condition);
  return 0;
}

// std::call_once, and so std::future, waits in its function for a thread.
int pthread_once(pthread_once_t* control, void (*function)()) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(pthread_once, control, function);
  while (simulation::RunningOnce().contains(control)) scheduler->WaitFor(control);
  if (*control == simulation::kOnceDone) return 0;
  simulation::RunningOnce().insert(control);
  function();
  simulation::RunningOnce().erase(control);
  *control = simulation::kOnceDone;
  scheduler->WakeAll(control);
  return 0;
}

// libstdc++ waits for futures and atomics with futex(2).
long syscall(long number, ...) noexcept {
  static decltype(::syscall)* real;
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  Scheduler* const scheduler = Scheduler::Running();
  if (scheduler != nullptr && number == SYS_futex) {
    return simulation::FutexInTask(*scheduler, reinterpret_cast<int*>(arguments[0]),
                                   static_cast<int>(arguments[1]), static_cast<int>(arguments[2]),
                                   reinterpret_cast<const timespec*>(arguments[3]));
  }
  return simulation::Real(real, "syscall")(number, arguments[0], arguments[1], arguments[2],
                                           arguments[3], arguments[4], arguments[5]);
}

// Time. Both clocks begin at the same time, but the time of day may be wrong.

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(clock_gettime, clock, time);
  const bool is_time_of_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
  *time = simulation::ToTimespec(scheduler->now_ns() +
                                 (is_time_of_day ? scheduler->process().clock_error_ns : 0));
  return 0;
}

int gettimeofday(timeval* time, void* zone) noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(gettimeofday, time, zone);
  const timespec now = simulation::ToTimespec(scheduler->now_ns());
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t* result) noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(time, result);
  const time_t now = scheduler->now_ns() / simulation::kSecondNs;
  if (result != nullptr) *result = now;
  return now;
}

int nanosleep(const timespec* duration, timespec* rest) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(nanosleep, duration, rest);
  scheduler->SleepFor(simulation::Nanoseconds(*duration));
  return 0;
}

int usleep(useconds_t duration_us) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(usleep, duration_us);
  scheduler->SleepFor(int64_t{1000} * duration_us);
  return 0;
}

// The identity of the process, and random numbers.

pid_t getpid() noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(getpid);
  return simulation::kFirstPid + static_cast<pid_t>(scheduler->process().id);
}

int gethostname(char* name, size_t size) noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(gethostname, name, size);
  const std::string host = "host-" + std::to_string(scheduler->process().id);
  std::memcpy(name, host.c_str(), std::min(size, host.size() + 1));
  return 0;
}

ssize_t getrandom(void* bytes, size_t size, unsigned flags) {
  CAIRN_REAL_OUTSIDE_OF_TASKS(getrandom, bytes, size, flags);
  auto* const begin = static_cast<unsigned char*>(bytes);
  std::generate_n(begin, size, [&] { return static_cast<unsigned char>(scheduler->random()()); });
  return static_cast<ssize_t>(size);
}

uint32_t arc4random() noexcept {
  CAIRN_REAL_OUTSIDE_OF_TASKS(arc4random);
  return static_cast<uint32_t>(scheduler->random()());
}

}  // extern "C"

namespace cairn::kv::internal {

pid_t ProcessId() { return ::getpid(); }  // which the page of this process cannot know

}  // namespace cairn::kv::internal
