#pragma once
/// A Python function that follows a copy of steps between stores.

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>
#include <utility>

#include "kv/base/copy_options.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/progress_function.h"

namespace cairn::python {

namespace nb = nanobind;

/// Calls `function(step, done_bytes, total_bytes)`, unless it is None, at most every 100 ms, on any
/// thread of a copy. The copy stops if the function returns False or raises, or if a signal handler
/// raises.
///
/// Ownership: borrows the watch, and must outlive the copy. Threads: created, destroyed and
/// rethrown with the GIL; calls do not overlap and require that the caller does not hold the GIL.
class CopyProgressFunction {
 public:
  CopyProgressFunction(nb::object function, SignalWatch& watch)
      : function_(std::move(function)), watch_(watch) {}

  bool Call(const kv::CopyProgress& progress) {
    if (!watch_.Check() || is_stopped_) return false;
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
  /// Raises what the function has raised, if anything.
  void Rethrow() {
    if (raised_) throw nb::python_error(std::move(*raised_));
  }

 private:
  nb::object function_;
  SignalWatch& watch_;
  std::optional<std::chrono::steady_clock::time_point> last_call_;
  bool is_stopped_ = false;
  std::optional<nb::python_error> raised_;
};

}  // namespace cairn::python
