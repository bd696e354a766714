// Thread-local Python functions that follow long calls.

#include "python/src/progress_function.h"

#include <utility>

#include "python/src/gil.h"

namespace cairn::python {
namespace {

// A raw pointer that owns a reference, because the destructors of thread-local objects run without
// the GIL. Python code restores the previous function after each call, so nothing leaks.
thread_local PyObject* thread_function = nullptr;

std::atomic<int> interval_ms = 100;

}  // namespace

nb::object SetProgressFunction(nb::object function) {
  PyObject* const previous =
      std::exchange(thread_function, function.is_none() ? nullptr : function.release().ptr());
  return previous == nullptr ? nb::none() : nb::steal(previous);
}

std::chrono::milliseconds ProgressInterval() { return std::chrono::milliseconds(interval_ms); }

void SetProgressInterval(int milliseconds) { interval_ms = milliseconds; }

bool ReportProgress(uint64_t done, uint64_t total) { return ProgressFunction().Call(done, total); }

ProgressFunction::ProgressFunction() : function_(thread_function) {}

bool ProgressFunction::Call(uint64_t done_bytes, uint64_t total_bytes) const {
  if (function_ == nullptr || thread_function != function_) return true;
  const nb::object function = SetProgressFunction(nb::none());  // owns it during the call
  const auto restore = [&] { SetProgressFunction(function); };
  try {
    const nb::object answer = RunPython([&] { return function(done_bytes, total_bytes); });
    restore();
    return answer.ptr() != Py_False;
  } catch (...) {
    restore();
    throw;
  }
}

core::Progress Recorder(std::shared_ptr<BackgroundProgress> progress) {
  return [progress = std::move(progress)](uint64_t done, uint64_t total) {
    progress->done_bytes.store(done, std::memory_order_relaxed);
    progress->total_bytes.store(total, std::memory_order_relaxed);
    return true;
  };
}

}  // namespace cairn::python
