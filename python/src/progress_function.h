#pragma once
/// The Python function to which the long calls of a thread report their progress.

#include <nanobind/nanobind.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "core/base/progress.h"

namespace cairn::python {

namespace nb = nanobind;

/// Sets the function of the calling thread (None: no function), and returns the one before it.
/// Requires the GIL.
nb::object SetProgressFunction(nb::object function);

/// The shortest time between two calls of a function, and between two checks for signals: 100 ms
/// unless a test has set another one. Threads: any.
std::chrono::milliseconds ProgressInterval();
/// The time after which a wait for another thread looks at progress and signals.
inline std::chrono::milliseconds WaitSlice() {
  return std::max(ProgressInterval() / 2, std::chrono::milliseconds(1));
}
void SetProgressInterval(int milliseconds);

/// Calls the function of the calling thread, for loops of Python code. Returns false if it has
/// returned False. Requires the GIL.
bool ReportProgress(uint64_t done, uint64_t total);

/// The function of the thread that created this object, at that time.
///
/// Ownership: borrows the function, which stays set for as long as the call that reports to it.
/// Threads: created and called with the GIL, on one thread.
class ProgressFunction {
 public:
  ProgressFunction();
  /// Calls `function(done_bytes, total_bytes)`, unless there is none, or it is running already (it
  /// may make long calls itself). Returns false if it has returned False. Throws
  /// nb::python_error if it has raised.
  bool Call(uint64_t done_bytes, uint64_t total_bytes) const;

 private:
  PyObject* function_;
};

/// How much of some work on another thread is done. Shared by that thread, which writes it, and by
/// the one that shows it. Threads: any.
struct BackgroundProgress {
  std::atomic<uint64_t> done_bytes = 0;
  std::atomic<uint64_t> total_bytes = 0;  // 0 until it is known
};

/// Returns a callback that records the progress, and shares `progress`.
core::Progress Recorder(std::shared_ptr<BackgroundProgress> progress);

}  // namespace cairn::python
