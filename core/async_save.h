#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Asynchronous saves: the state is copied to staging memory, which is reused from save to save,
/// and written in the background while the training continues.
///
///   AsyncSaver saver(store.get());
///   CAIRN_TRY_ASSIGN(SaveHandle handle, saver.Save(200, state));
///   handle.WaitStaged();                      // from here on the tensors may change
///   CAIRN_TRY_ASSIGN(report, handle.Wait());  // from here on step 200 is durable

#include <chrono>
#include <future>
#include <memory>

#include "core/checkpoint_store.h"

namespace cairn::core {

namespace internal {
class StagedPoint;
}

/// A save that is running or has ended. Copies refer to the same save. Threads: all members may be
/// called from any thread.
class SaveHandle {
 public:
  /// Waits until the caller may change its tensors. Returns at once for tensors in host memory, and
  /// for tensors in device memory when their bytes have been copied.
  void WaitStaged() const;
  /// Makes `stream` wait until the copies from its device are done, instead of the host: work that
  /// is enqueued on `stream` after this call may change the tensors. The call itself waits until
  /// all copies are enqueued, which takes as long as the writing if the state is larger than the
  /// budget of page-locked memory. kUnavailable: the device has failed. An error of the save is
  /// returned by Wait only.
  Result<void> MakeStreamWait(const DeviceStream& stream) const;
  /// Waits until the step is durable or the save has failed. Repeated calls return the same result.
  Result<SaveReport> Wait() const { return result_.get(); }
  /// Waits until the save has ended, but at most `timeout`. Returns false if it is still running.
  bool WaitFor(std::chrono::milliseconds timeout) const {
    return result_.wait_for(timeout) == std::future_status::ready;
  }
  bool done() const { return WaitFor(std::chrono::milliseconds(0)); }

 private:
  friend class AsyncSaver;
  std::shared_future<Result<SaveReport>> result_;
  std::shared_ptr<const internal::StagedPoint> staged_;  // shared with the save; null: no wait
};

/// Ownership: owns one worker thread and the staging memory; borrows the store, which must outlive
/// it. Threads: one caller at a time.
class AsyncSaver {
 public:
  /// Requires that `store` is not null.
  explicit AsyncSaver(CheckpointStore* store);
  /// Waits for a running save.
  ~AsyncSaver();

  /// Starts a save of `state` as `step` and returns when the tensors in host memory are staged.
  /// Tensors in device memory are digested and copied in the background; see
  /// SaveHandle::WaitStaged and SaveOptions::device_snapshot. Waits first for the previous save,
  /// whose error only its own handle returns. Tensors that share memory are staged once and still
  /// share it in the step. `options.progress` is called from the worker thread.
  ///
  /// Errors in the state itself (duplicate FQNs, a step that exists) are returned here, as is
  /// kResourceExhausted if there is no memory for staging. All other errors of
  /// CheckpointStore::Save are returned by the handle.
  Result<SaveHandle> Save(uint64_t step, const StateDict& state, const SaveOptions& options = {});

  /// Host memory that is held for staging.
  uint64_t staging_bytes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::core
