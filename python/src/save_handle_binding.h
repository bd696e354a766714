#pragma once
/// The handle of an asynchronous save of the Python side.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "core/async_save.h"
#include "core/save/save_options.h"
#include "python/src/process_guard.h"

namespace cairn::python {

namespace nb = nanobind;

/// Returns (step, logical bytes, written bytes, device bytes, direct bytes, chunks, chunks reused,
/// seconds).
nb::tuple ToPyReport(const core::SaveReport& report);

/// An asynchronous save. Threads: any; each waits without the GIL. Raises Invalid in a forked
/// child.
class SaveHandleBinding {
 public:
  explicit SaveHandleBinding(core::SaveHandle handle) : handle_(std::move(handle)) {}
  /// Waits until the caller may change its tensors.
  void WaitStaged() const;
  /// Makes work that is enqueued from now on, on the stream with that address on `device`, run
  /// after the copies from that device. Waits until the copies are enqueued.
  void MakeStreamWait(int device, uintptr_t stream) const;
  /// Waits until the save has ended, at most `timeout_seconds` if given. Returns true if it has
  /// ended. Runs signal handlers while it waits.
  bool Wait(std::optional<double> timeout_seconds) const;
  bool done() const;
  /// Waits until the save has ended. Returns the report as a tuple, or raises the error of the
  /// save.
  nb::tuple Report() const;

 private:
  core::SaveHandle handle_;
  ProcessGuard process_;
};

}  // namespace cairn::python
