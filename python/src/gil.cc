// The counters and the exit function behind gil.h.

#include "python/src/gil.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>

namespace cairn::python {
namespace {

// Threads that have released the GIL or have stopped.
std::atomic<int> threads_in_calls = 0;

// Whether this thread ends Python: it alone holds the GIL after the end has begun.
thread_local bool is_ending_python = false;

// Guards the two below, which the GIL guards where there is one.
nanobind::ft_mutex pauses_mutex;
int pause_count = 0;
bool was_collecting = false;  // before the first of the pauses

}  // namespace

// Py_IsInitialized is false from the moment on at which other threads can get the GIL no more.
bool IsPythonGone() {
  if (Py_IsInitialized() != 0) return false;
  return !is_ending_python || !nanobind::is_alive();
}

void StopThread() {
  ++threads_in_calls;
  while (true) (void)pause();
}

GilRelease::GilRelease() {
  if (Py_IsInitialized() == 0) is_ending_python = true;
  ++threads_in_calls;
  state_ = PyEval_SaveThread();
}

GilRelease::~GilRelease() {
  if (IsPythonGone()) StopThread();
  RunPython([this] { PyEval_RestoreThread(state_); });
  --threads_in_calls;
}

GilAcquire::GilAcquire() : is_held_(!IsPythonGone()) {
  if (is_held_) state_ = RunPython([] { return PyGILState_Ensure(); });
}

GilAcquire::~GilAcquire() {
  if (is_held_) PyGILState_Release(state_);
}

CollectionPause::CollectionPause() {
  const nanobind::ft_lock_guard lock(pauses_mutex);
  if (pause_count++ == 0) was_collecting = PyGC_Disable() != 0;
}

CollectionPause::~CollectionPause() {
  const nanobind::ft_lock_guard lock(pauses_mutex);
  if (--pause_count == 0 && was_collecting) PyGC_Enable();
}

// The unwinding has no C++ exception.
void StopUnwoundThreads() {
  // Called first by nanobind, which catches everything that a bound function throws.
  nanobind::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    if (thrown == nullptr && IsPythonGone()) StopThread();
    std::rethrow_exception(thrown);
  });
  static std::terminate_handler previous = nullptr;
  previous = std::set_terminate([] {
    if (abi::__cxa_current_exception_type() == nullptr && IsPythonGone()) StopThread();
    if (previous != nullptr) previous();
    std::abort();
  });
}

void SkipDestructorsOfBusyProcess() {
  (void)on_exit(
      [](int status, void*) {
        if (threads_in_calls == 0) return;
        std::fflush(nullptr);
        _exit(status);
      },
      nullptr);
}

}  // namespace cairn::python
