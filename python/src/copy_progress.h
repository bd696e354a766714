#pragma once
/// A Python function that follows a copy of steps between stores.

#include <nanobind/nanobind.h>

#include <chrono>
#include <functional>
#include <optional>

#include "kv/base/copy_options.h"
#include "python/src/errors.h"

namespace cairn::python {

namespace nb = nanobind;

/// Calls `function(step, done_bytes, total_bytes)` at most every 100 ms, on any thread of the copy.
/// The copy stops if the function returns False or raises, or if a signal handler raises.
///
/// Ownership: borrows the watch, and must outlive the copy. Threads: created, destroyed and
/// rethrown with the GIL; calls of the progress do not overlap and require that the caller does not
/// hold the GIL.
class CopyProgressFunction {
 public:
  /// `function` may be None.
  CopyProgressFunction(nb::object function, SignalWatch& watch)
      : function_(std::move(function)), watch_(watch) {}
  std::function<bool(const kv::CopyProgress&)> AsProgress();
  /// Raises what the function has raised, if anything. Requires the GIL.
  void Rethrow();

 private:
  bool Call(const kv::CopyProgress& progress);

  nb::object function_;
  SignalWatch& watch_;
  std::optional<std::chrono::steady_clock::time_point> last_call_;
  bool is_stopped_ = false;
  std::optional<nb::python_error> raised_;
};

}  // namespace cairn::python
