#pragma once
/// The mapping of errors to Python exceptions, and signal handlers during long calls.

#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "core/base/progress.h"
#include "kv/base/error.h"
#include "python/src/progress_function.h"

namespace cairn::python {

namespace nb = nanobind;

/// Raises the exception of cairn.errors that belongs to `error.code`. Requires the GIL.
[[noreturn]] void Throw(const Error& error);

/// Returns a Corrupt for damage that a search has found. Requires the GIL.
nb::object ToPyDamage(Error damage);

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
  /// Does the same once with another function, which returns false to stop the call. Threads: any,
  /// one at a time.
  bool ReportTo(const std::function<bool()>& function);
  /// The next report is made at once.
  void MakeDue() { last_report_ = {}; }
  /// Returns a progress callback for work on another thread. Each call of it waits until this
  /// thread, which waits for the work in AwaitEnd, has done the same. Threads: that other thread.
  core::Progress AsProgressOfWorker();
  /// Waits a moment for the work of another thread, and answers its progress callback. Returns
  /// whether the work has called SetEnded. Requires that the caller does not hold the GIL.
  bool AwaitEnd();
  /// Makes the progress callback of the work return false from now on. Threads: any.
  void ReleaseWorker();
  /// Ends the wait for the calling thread's work. Threads: that of the work.
  void SetEnded();
  /// Does the same check for signals in a loop. Returns false after a handler has raised. Requires
  /// that the caller does not hold the GIL.
  bool Check();
  /// Raises the exception of a handler or of the function, if one has raised. Requires the GIL.
  void Rethrow();
  /// Returns whether a signal handler or a function of a SignalWatch is running on this thread.
  static bool IsRunningPython();

 private:
  // Returns true at most every 100 ms, and sets `last`.
  static bool IsDue(std::chrono::steady_clock::time_point& last);
  // Requires the GIL.
  bool CheckSignals();

  ProgressFunction progress_;
  bool is_stopped_ = false;      // the function has returned False
  bool is_interrupted_ = false;  // a handler has raised
  std::chrono::steady_clock::time_point last_check_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point last_report_ = last_check_;
  std::optional<nb::python_error> raised_;

  // What the thread of the work and the one that waits for it tell each other.
  std::mutex mutex_;
  std::condition_variable changed_;
  struct WorkerReport {
    uint64_t done_bytes;
    uint64_t total_bytes;
  };
  std::optional<WorkerReport> report_;  // not answered yet
  bool may_continue_ = true;            // the answer
  bool is_released_ = false;            // the work does not wait for answers
  bool has_ended_ = false;
};

}  // namespace cairn::python
