#pragma once
/// The mapping of errors to Python exceptions, and signal handlers during long calls.

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>
#include <string>

#include "core/base/progress.h"
#include "kv/error.h"

namespace cairn::python {

namespace nb = nanobind;

/// Raises the exception of cairn.errors that belongs to `error.code`. Requires the GIL.
[[noreturn]] void Throw(const Error& error);

/// Raises Invalid with exactly this text. Requires the GIL.
[[noreturn]] void ThrowInvalid(const std::string& message, const std::string& key = {},
                               std::optional<uint64_t> step = {});

/// Returns the value, or raises the error as a Python exception. Requires the GIL.
// Not inline: gcc 12 warns about uninitialised memory where it sees an expected moved from.
template <typename T>
[[gnu::noinline]] T Unwrap(Result<T> result) {
  if (!result) Throw(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Lets signal handlers (Ctrl-C) run during a long call that has released the GIL.
///
///   SignalWatch watch;
///   auto result = ...Load(step, requests, watch.AsProgress());  // GIL released
///   watch.Rethrow();                                            // GIL held again
///
/// Ownership: must outlive the call that uses its Progress. Threads: one.
class SignalWatch {
 public:
  /// Returns a progress callback that checks for signals at most every 100 ms, and cancels the call
  /// after a handler has raised.
  core::Progress AsProgress();
  /// Does the same check in a loop. Returns false after a handler has raised. Requires that the
  /// caller does not hold the GIL.
  bool Check();
  /// Raises the exception of a handler, if one has raised. Requires the GIL.
  void Rethrow();

 private:
  std::chrono::steady_clock::time_point last_check_ = std::chrono::steady_clock::now();
  std::optional<nb::python_error> raised_;
};

}  // namespace cairn::python
