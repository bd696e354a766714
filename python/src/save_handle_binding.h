#pragma once
/// The handle of an asynchronous save of the Python side.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/async_save.h"
#include "core/save/save_options.h"
#include "python/src/process_guard.h"
#include "python/src/progress_function.h"

namespace cairn::python {

namespace nb = nanobind;

/// An asynchronous save. Threads: any; each waits without the GIL. Raises Invalid in a forked
/// child.
class SaveHandleBinding {
 public:
  SaveHandleBinding(core::SaveHandle handle, std::shared_ptr<const BackgroundProgress> progress)
      : handle_(std::move(handle)), progress_(std::move(progress)) {}
  /// Waits until the caller may change its tensors.
  void WaitStaged() const;
  /// Makes work that is enqueued from now on, on the stream with that address on `device`, run
  /// after the copies from that device. Waits until the copies are enqueued.
  void MakeStreamWait(int device, uintptr_t stream) const;
  /// Waits until the save has ended, at most `timeout_seconds` if given. Returns true if it has
  /// ended. In the meantime, runs signal handlers and calls the ProgressFunction of the thread. If
  /// that returns False, raises Unavailable; the save continues.
  bool Wait(std::optional<double> timeout_seconds) const;
  bool done() const;
  /// Waits until the save has ended. Returns its report, or raises its error.
  core::SaveReport Report() const;

 private:
  core::SaveHandle handle_;
  std::shared_ptr<const BackgroundProgress> progress_;
  ProcessGuard process_;
};

}  // namespace cairn::python
