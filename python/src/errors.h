#pragma once
/// Errors and signals at the border to Python.

#include <nanobind/nanobind.h>

#include <chrono>
#include <optional>
#include <string>

#include "core/base/progress.h"
#include "kv/error.h"


namespace cairn::python {

namespace nb = nanobind;

/// Raises the exception of cairn.errors that `error.code` stands for. Requires the GIL.
[[noreturn]] void Throw(const Error& error);

/// Raises Invalid with just this text. Requires the GIL.
[[noreturn]] void ThrowInvalid(const std::string& message, const std::string& key = {},
                               std::optional<uint64_t> step = {});

/// The value, or the error as a Python exception. Requires the GIL.
// Not inline: gcc 12 warns of uninitialised memory where it sees an expected moved from.
template <typename T>
[[gnu::noinline]] T Unwrap(Result<T> result) {
  if (!result) Throw(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Lets signal handlers (Ctrl-C) run while a long call works without the GIL.
///
///   SignalWatch watch;
///   auto result = ...Load(step, requests, watch.AsProgress());  // GIL released
///   watch.Rethrow();                                            // GIL held again
///
/// Threads: one. Must outlive the call that was given its Progress.
class SignalWatch {
 public:
  /// Looks for signals at most every 100 ms; cancels once a handler raised.
  core::Progress AsProgress();
  /// Same check, for loops of ours. Requires that the GIL is not held; false once a handler raised.
  bool Check();
  /// Raises what a handler raised, if one did. Requires the GIL.
  void Rethrow();

 private:
  std::chrono::steady_clock::time_point last_check_ = std::chrono::steady_clock::now();
  std::optional<nb::python_error> raised_;
};

}  // namespace cairn::python
