#pragma once
/// The mapping of errors to Python exceptions, and signal handlers during long calls.

#include <nanobind/nanobind.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "core/base/progress.h"
#include "kv/base/error.h"
#include "python/src/progress_function.h"

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

/// Lets signal handlers (Ctrl-C) and the ProgressFunction of the thread run during a long call that
/// has released the GIL.
///
///   SignalWatch watch;
///   auto result = ...Load(step, requests, watch.AsProgress());  // GIL released
///   watch.Rethrow();                                            // GIL held again
///
/// Ownership: must outlive the call that uses its Progress. Threads: one.
class SignalWatch {
 public:
  /// Returns a progress callback that at most every 100 ms checks for signals and calls the
  /// ProgressFunction. It cancels the call after a handler or the function has raised, or after the
  /// function has returned False.
  core::Progress AsProgress();
  /// Does the same once.
  bool Report(uint64_t done_bytes, uint64_t total_bytes);
  /// From now on, Check also calls the ProgressFunction, with what another thread records in
  /// `progress`. If it raises or returns False, that thread is asked to stop.
  void Follow(std::shared_ptr<BackgroundProgress> progress);
  /// Does the same check for signals in a loop. Returns false after a handler has raised. Requires
  /// that the caller does not hold the GIL.
  bool Check();
  /// Raises the exception of a handler or of the function, if one has raised. Requires the GIL.
  void Rethrow();

 private:
  // Returns true at most every 100 ms.
  bool IsDue();

  // Requires the GIL.
  void ReportFollowed();

  ProgressFunction progress_;
  std::shared_ptr<BackgroundProgress> followed_;
  bool is_stopped_ = false;
  std::chrono::steady_clock::time_point last_check_ = std::chrono::steady_clock::now();
  std::optional<nb::python_error> raised_;
  std::optional<nb::python_error> raised_by_function_;  // for work that is followed
};

}  // namespace cairn::python
