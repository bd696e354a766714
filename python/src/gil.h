#pragma once
/// The interpreter lock (GIL) on threads that may outlive Python, and pauses of its collector.
/// Nothing else in this module releases or takes the lock, and Python code is called through
/// RunPython.
///
/// A free-threaded Python has no lock, and this module needs none there. To hold the GIL then means
/// to be attached to Python: such a thread may use Python objects, and must not wait for another
/// thread, because the collector waits for all threads that are attached.
///
/// Python does not wait for daemon threads when it ends. A thread that then asks for the GIL never
/// gets it. Until 3.13, CPython ends such a thread with pthread_exit, which unwinds the stack: the
/// first C++ function that is noexcept (nanobind's calls and all destructors are) then ends the
/// process with SIGABRT, and objects on the way are released without the GIL. From 3.14 on, the
/// thread stops where it is. Here it always does:
///
/// 1. A thread that returns from a call and finds that Python is ending stops, without locks.
/// 2. A callback from C++ that needs Python finds that there is none, and cancels its call.
/// 3. If Python begins to end while the thread waits for the GIL, the unwinding that CPython begins
///    ends at the first frame of this module, and the thread stops there.
///    In the code of others, such as torch, it ends where it would end the process.
/// 4. A process that ends while threads are in calls of this module, or have stopped, skips the
///    static destructors, which would destroy what these threads use.
///
/// A thread that stops never continues, and what it holds is never released.

#include <cxxabi.h>
#include <nanobind/nanobind.h>

#include <utility>

namespace cairn::python {

/// Returns true once Python has begun to end, except on the thread that ends it.
bool IsPythonGone();

/// Never returns. Requires that IsPythonGone, or that CPython is unwinding the stack.
[[noreturn]] void StopThread();

/// Returns `work()`, which may run Python code or wait for the GIL. Requires the GIL if it does.
template <typename Work>
auto RunPython(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (abi::__forced_unwind&) {
    StopThread();
  }
}

/// Releases the GIL until the end of its scope. Requires the GIL.
class GilRelease {
 public:
  GilRelease();
  ~GilRelease();
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

/// Returns `work()`, which runs without the GIL. Requires the GIL.
template <typename Work>
auto OutsideGil(const Work& work) {
  const GilRelease no_gil;
  return work();
}

/// Holds the GIL until the end of its scope, on any thread, unless Python is gone.
class GilAcquire {
 public:
  GilAcquire();
  ~GilAcquire();
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

  /// Returns false if Python is gone. Then nothing of Python may be used.
  explicit operator bool() const { return is_held_; }

 private:
  const bool is_held_;
  PyGILState_STATE state_{};
};

/// Turns Python's cyclic collector off during its lifetime, for code that creates many objects that
/// all stay alive: the collector would visit all objects again after every few hundred new ones.
/// The pauses of several threads may overlap: the last one turns the collector on again, unless it
/// was off before the first one. Requires the GIL.
class CollectionPause {
 public:
  CollectionPause();
  ~CollectionPause();
  CollectionPause(const CollectionPause&) = delete;
  CollectionPause& operator=(const CollectionPause&) = delete;
};

/// Stops each thread that CPython unwinds and that no RunPython has stopped. Called once.
void StopUnwoundThreads();

/// Lets exit() skip static destructors while threads are in calls of this module or have stopped.
/// Called when Python ends, so that it precedes the destructors of all objects that exist then.
void SkipDestructorsOfBusyProcess();

}  // namespace cairn::python
