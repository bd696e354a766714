// Functions that g++ 12, its standard library or RocksDB use, and that glibc 2.28 does not have.
// The linker takes them into each module and program that uses them; they are not exported.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32 sets it while a process has one thread. std::shared_ptr then counts without atomic
// operations; with false it always counts with them.
HIDDEN char __libc_single_threaded = 0;

// glibc 2.30.
HIDDEN pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// glibc 2.36; std::random_device uses it.
HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  if (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) abort();
  return value;
}

// glibc 2.30; std::condition_variable::wait_for uses it. Without it, a wait of the steady clock
// becomes one of the system's clock, which may be set: therefore it ends after at most a second,
// and the caller, which compares the clock itself, waits again.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                  clockid_t clock, const struct timespec* until) {
  typedef int (*ClockWait)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static ClockWait found;
  static int searched;
  if (!__atomic_load_n(&searched, __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&found, (ClockWait)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"),
                     __ATOMIC_RELAXED);
    __atomic_store_n(&searched, 1, __ATOMIC_RELEASE);
  }
  const ClockWait newer = __atomic_load_n(&found, __ATOMIC_RELAXED);
  if (newer != NULL) return newer(condition, mutex, clock, until);

  struct timespec now;
  clock_gettime(clock, &now);
  const int64_t second_ns = 1000000000;
  int64_t wait_ns = second_ns;
  if (until->tv_sec - now.tv_sec < 2) {
    wait_ns = (int64_t)(until->tv_sec - now.tv_sec) * second_ns + (until->tv_nsec - now.tv_nsec);
    if (wait_ns <= 0) return ETIMEDOUT;
    if (wait_ns > second_ns) wait_ns = second_ns;
  }
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t end_ns = now.tv_nsec + wait_ns;
  const struct timespec end = {.tv_sec = now.tv_sec + end_ns / second_ns,
                               .tv_nsec = end_ns % second_ns};
  return pthread_cond_timedwait(condition, mutex, &end);
}
