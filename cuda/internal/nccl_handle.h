#pragma once
/// One ncclComm_t that never blocks: NCCL works in the background, and every wait for it has a
/// deadline.
///
/// NCCL answers calls with ncclInProgress; until its asynchronous state says otherwise nothing else
/// may be called on the communicator but the question for that state, and ncclCommAbort.

#include <nccl.h>

#include <memory>
#include <utility>

#include "cuda/internal/nccl_library.h"
#include "cuda/internal/poll.h"
#include "cuda/nccl_stop.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// Ownership: owns the communicator; the destructor aborts what `Close` has not ended. Immovable,
/// as NCCL's threads write to its member. Threads: one call at a time. The device of `Init` is
/// current in every call, which the caller sees to.
///
/// Errors are kUnavailable and say what was attempted and what NCCL said; the communicator is fit
/// for `Abort` only then.
class NcclHandle {
 public:
  /// `stop` ends every wait; shared with whoever asks for that, and with parts.
  static Result<std::unique_ptr<NcclHandle>> Init(
      const NcclLibrary& nccl, const ncclUniqueId& id, int rank, int world_size, Deadline deadline,
      std::shared_ptr<NcclStop> stop = std::make_shared<NcclStop>());
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;
  ~NcclHandle() { Abort(); }

  /// Collective: those of one `color` (not negative) by ascending `key`.
  Result<std::unique_ptr<NcclHandle>> Split(int color, int key, Deadline deadline);

  const NcclLibrary& nccl() const { return nccl_; }
  NcclStop& stop() const { return *stop_; }
  /// Null after Abort or Close.
  ncclComm_t get() const { return comm_; }

  /// Waits until what a call has begun is under way; `status` is what the call returned. Only then
  /// do its streams hold the work.
  Result<void> Drain(ncclResult_t status, const char* what, Deadline deadline) const;
  /// What went wrong in the background.
  Result<void> CheckHealth(const char* what) const;

  /// Ends all work on the device and gives everything back. Peers are not told: they meet their
  /// own deadlines.
  void Abort() noexcept;
  /// Lets NCCL send on what peers still read, then gives everything back; aborts at the deadline,
  /// or if it is asked to stop.
  void Close(Deadline deadline) noexcept;

 private:
  NcclHandle(const NcclLibrary& nccl, std::shared_ptr<NcclStop> stop)
      : nccl_(nccl), stop_(std::move(stop)) {}
  Result<void> CheckStop(const char* what) const;
  /// False while NCCL works for the last call.
  Result<bool> IsIdle(const char* what) const;
  Error ErrorOf(ncclResult_t status, const char* what) const;
  /// Until NCCL's thread has written `comm_`, and it is ready.
  Result<void> Arrive(const char* what, Deadline deadline);

  const NcclLibrary& nccl_;
  const std::shared_ptr<NcclStop> stop_;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<NcclHandle> unfinished_;  // a part that NCCL may still write to
};

}  // namespace cairn::cuda::internal
