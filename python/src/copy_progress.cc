// Calls a Python function from the threads of a copy.

#include "python/src/copy_progress.h"

#include <utility>

#include "python/src/gil.h"

namespace cairn::python {

std::function<bool(const kv::CopyProgress&)> CopyProgressFunction::AsProgress() {
  return [this](const kv::CopyProgress& progress) { return watch_.Check() && Call(progress); };
}

bool CopyProgressFunction::Call(const kv::CopyProgress& progress) {
  if (is_stopped_) return false;
  const auto now = std::chrono::steady_clock::now();
  if (last_call_ && now - *last_call_ < ProgressInterval()) return true;
  last_call_ = now;
  const GilAcquire gil;
  if (!gil) return false;
  if (function_.is_none()) return true;
  try {
    const nb::object answer = RunPython(
        [&] { return function_(progress.step, progress.done_bytes, progress.total_bytes); });
    is_stopped_ = answer.ptr() == Py_False;
  } catch (nb::python_error& error) {
    raised_.emplace(std::move(error));
    is_stopped_ = true;
  }
  return !is_stopped_;
}

void CopyProgressFunction::Rethrow() {
  if (!raised_) return;
  nb::python_error error = std::move(*raised_);
  raised_.reset();
  throw error;
}

}  // namespace cairn::python
