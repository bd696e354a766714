#pragma once
/// Asynchronous saves: copy the state into staging memory that is reused from save to save, then
/// write it behind the training.

#include <chrono>
#include <memory>

#include "core/checkpoint_store.h"

namespace cairn::core {

/// A running or finished save. Threads: all members may be called from any thread.
class SaveHandle {
 public:
  /// Waits until the caller may change its tensors again: at once for those in host memory, and
  /// until their bytes have left it for those in device memory.
  void WaitStaged() const;
  /// The same for work on a device: what `stream` gets from here on runs after the copies of its
  /// device; this call only waits until they are all enqueued, which may take as long as the disk
  /// where the state is larger than the page-locked budget. An error of the save is not told here.
  /// kUnavailable: the device has failed.
  Result<void> MakeStreamWait(const DeviceStream& stream) const;
  /// Waits until the step is durable, or has failed. May be called again and gives the same answer.
  Result<SaveReport> Wait() const;
  /// Waits at most `timeout`; false if the save still runs.
  bool WaitFor(std::chrono::milliseconds timeout) const;
  bool done() const;

 private:
  friend class AsyncSaver;
  struct State;
  std::shared_ptr<State> state_;
};

/// Owns one worker thread and the staging memory. Threads: one caller at a time.
class AsyncSaver {
 public:
  /// `store` must outlive the saver.
  explicit AsyncSaver(CheckpointStore* store);
  /// Waits for a running save.
  ~AsyncSaver();

  /// Waits for the save before it (whose error stays in its own handle), copies every tensor in
  /// host memory into staging, starts the save and returns. Tensors in device memory are digested
  /// and copied behind the caller's back: see SaveHandle::WaitStaged, and
  /// SaveOptions::device_snapshot. Tensors that share memory are copied once and still
  /// share. Errors of the state itself (duplicate FQNs, existing step) are returned here, as is
  /// kResourceExhausted if there is no memory to stage into. `options.progress` is called from the
  /// worker thread.
  Result<SaveHandle> Save(uint64_t step, const StateDict& state, const SaveOptions& options = {});

  /// Host memory held for staging.
  uint64_t staging_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::core
