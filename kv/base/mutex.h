#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Mutexes, locks and a condition variable that carry annotations for Clang's thread safety
/// analysis, which libstdc++'s types lack. They add no state and no cost to the standard types.
///
///   MutexLock lock(mutex_);
///   while (queue_.empty()) changed_.Wait(mutex_);  // a loop: the analysis does not follow lambdas

#include <chrono>
#include <condition_variable>
#include <mutex>

// Macros that state which mutex guards what. Clang checks them (-Wthread-safety, the preset
// `clang`); for other compilers they are empty. See
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.

#if defined(__clang__)
#define CAIRN_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define CAIRN_THREAD_ANNOTATION(attribute)
#endif

/// After a field: it is used only while `mutex` is held.
#define CAIRN_GUARDED_BY(mutex) CAIRN_THREAD_ANNOTATION(guarded_by(mutex))

/// After the parameters of a function: the caller holds the mutexes.
#define CAIRN_REQUIRES(...) CAIRN_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
/// After the parameters of a function: it locks or unlocks the mutexes; without an argument, the
/// mutex that the object is or holds.
#define CAIRN_ACQUIRE(...) CAIRN_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define CAIRN_RELEASE(...) CAIRN_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

/// Between `class` and the name: the class is a mutex, or holds one for its scope.
#define CAIRN_CAPABILITY(name) CAIRN_THREAD_ANNOTATION(capability(name))
#define CAIRN_SCOPED_CAPABILITY CAIRN_THREAD_ANNOTATION(scoped_lockable)

namespace cairn {

/// Threads: all members are safe. Not recursive.
class CAIRN_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() CAIRN_ACQUIRE() { mutex_.lock(); }
  void Unlock() CAIRN_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

/// Holds a mutex until the end of its scope, except between Unlock and Lock. Ownership: `mutex`
/// outlives it. Threads: only the thread that created it uses it.
class CAIRN_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CAIRN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() CAIRN_RELEASE() {
    if (locked_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  /// Requires that Unlock was called before.
  void Lock() CAIRN_ACQUIRE() {
    mutex_.Lock();
    locked_ = true;
  }
  /// Requires that the mutex is held.
  void Unlock() CAIRN_RELEASE() {
    mutex_.Unlock();
    locked_ = false;
  }

 private:
  Mutex& mutex_;
  bool locked_ = true;
};

/// Lets threads wait for a change of what a mutex guards. Every wait may return without a
/// notification, so callers wait in a loop that checks their condition. Threads: all members are
/// safe.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  /// Releases `mutex`, waits for a notification, and locks `mutex` again. All threads that wait at
  /// the same time name the same mutex.
  void Wait(Mutex& mutex) CAIRN_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    (void)lock.release();  // the caller continues to hold the mutex
  }
  /// Releases `mutex`, waits for a notification until `deadline` at the latest, and locks `mutex`
  /// again. Returns false if the deadline has passed.
  template <typename Clock, typename Duration>
  bool WaitUntil(Mutex& mutex, std::chrono::time_point<Clock, Duration> deadline)
      CAIRN_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const std::cv_status status = changed_.wait_until(lock, deadline);
    (void)lock.release();
    return status == std::cv_status::no_timeout;
  }

  void NotifyOne() { changed_.notify_one(); }
  void NotifyAll() { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace cairn
