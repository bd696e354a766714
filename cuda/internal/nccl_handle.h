#pragma once
/// An ncclComm_t in non-blocking mode: NCCL works in the background, and every wait for it has a
/// deadline.
///
/// Calls of NCCL return ncclInProgress. Until the asynchronous state of the communicator changes,
/// only ncclCommGetAsyncError and ncclCommAbort may be called on it.

#include <nccl.h>

#include <memory>
#include <utility>

#include "cuda/internal/nccl_library.h"
#include "cuda/internal/poll.h"
#include "cuda/nccl_stop.h"
#include "kv/base/error.h"

namespace cairn::cuda::internal {

/// Ownership: owns the communicator; the destructor aborts it unless `Close` was called. Immovable,
/// because NCCL's threads write to its member. Threads: one call at a time. The device that was
/// current in `Init` must be current in every call.
///
/// All errors are kUnavailable; the message states what was attempted and what NCCL reported. After
/// an error only `Abort` may be called.
class NcclHandle {
 public:
  /// Collective. `stop` ends every wait when it is requested; it is shared with the threads that
  /// may request that, and with the communicators of Split. `deadline` limits the connecting.
  static Result<std::unique_ptr<NcclHandle>> Init(
      const NcclLibrary& nccl, const ncclUniqueId& id, int rank, int world_size, Deadline deadline,
      std::shared_ptr<NcclStop> stop = std::make_shared<NcclStop>());
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;
  ~NcclHandle() { Abort(); }

  /// Collective. Returns the communicator of the ranks that gave the same `color` (not negative),
  /// ordered by ascending `key`.
  Result<std::unique_ptr<NcclHandle>> Split(int color, int key, Deadline deadline);

  const NcclLibrary& nccl() const { return nccl_; }
  NcclStop& stop() const { return *stop_; }
  /// Returns null after Abort or Close.
  ncclComm_t get() const { return comm_; }

  /// Waits until a call that returned `status` has enqueued its work. Before that, the streams do
  /// not contain the work.
  Result<void> Drain(ncclResult_t status, const char* what, Deadline deadline) const;
  /// Returns the error that occurred in the background, if any.
  Result<void> CheckHealth(const char* what) const;

  /// Ends all work on the device and frees everything. Does not inform the peers, which fail at
  /// their own deadlines.
  void Abort() noexcept;
  /// Lets NCCL finish the sends that peers still receive, then frees everything. Aborts at the
  /// deadline, or when `stop` is requested.
  void Close(Deadline deadline) noexcept;

 private:
  NcclHandle(const NcclLibrary& nccl, std::shared_ptr<NcclStop> stop)
      : nccl_(nccl), stop_(std::move(stop)) {}
  Result<void> CheckStop(const char* what) const;
  /// Returns false while NCCL still processes the last call.
  Result<bool> IsIdle(const char* what) const;
  Error ErrorOf(ncclResult_t status, const char* what) const;
  /// Waits until NCCL's thread has written `comm_` and the communicator is ready.
  Result<void> Arrive(const char* what, Deadline deadline);

  const NcclLibrary& nccl_;
  const std::shared_ptr<NcclStop> stop_;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<NcclHandle> unfinished_;  // the result of a failed Split, to which NCCL may write
};

}  // namespace cairn::cuda::internal
