// The one place where an ncclResult_t becomes an Error.

#include "cuda/internal/nccl_handle.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>

namespace cairn::cuda::internal {
namespace {

ncclConfig_t ConfigWithoutBlocking() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

}  // namespace

Error NcclHandle::ErrorOf(ncclResult_t status, const char* what) const {
  const char* const detail = nccl_.GetLastError(comm_);
  const bool has_detail = detail != nullptr && *detail != '\0';
  return {.code = ErrorCode::kUnavailable,
          .message =
              fmt::format("{}: NCCL reports {}{}{}{}", what, nccl_.GetErrorString(status),
                          has_detail ? " (" : "", has_detail ? detail : "", has_detail ? ")" : "")};
}

Result<void> NcclHandle::CheckStop(const char* what) const {
  if (!stop_->is_requested()) return {};
  return Fail(ErrorCode::kUnavailable, fmt::format("{}: {}", what, stop_->why()));
}

Result<bool> NcclHandle::IsIdle(const char* what) const {
  CAIRN_TRY(CheckStop(what));
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.CommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) return Fail(ErrorOf(asked, what));
  if (state != ncclSuccess && state != ncclInProgress) return Fail(ErrorOf(state, what));
  return state == ncclSuccess;
}

Result<void> NcclHandle::CheckHealth(const char* what) const {
  CAIRN_TRY(IsIdle(what));
  return {};
}

Result<void> NcclHandle::Drain(ncclResult_t status, const char* what, Deadline deadline) const {
  if (status != ncclSuccess && status != ncclInProgress) return Fail(ErrorOf(status, what));
  return Await([&] { return IsIdle(what); }, what, deadline);
}

Result<void> NcclHandle::Arrive(const char* what, Deadline deadline) {
  // For Split, NCCL's thread writes `comm_` while this thread reads it.
  CAIRN_TRY(Await(
      [&]() -> Result<bool> {
        CAIRN_TRY(CheckStop(what));
        return std::atomic_ref(comm_).load() != nullptr;
      },
      what, deadline));
  return Drain(ncclInProgress, what, deadline);
}

Result<std::unique_ptr<NcclHandle>> NcclHandle::Init(const NcclLibrary& nccl,
                                                     const ncclUniqueId& id, int rank,
                                                     int world_size, Deadline deadline,
                                                     std::shared_ptr<NcclStop> stop) {
  constexpr const char* kWhat = "connecting";
  auto handle = std::unique_ptr<NcclHandle>(new NcclHandle(nccl, std::move(stop)));
  ncclConfig_t config = ConfigWithoutBlocking();
  const ncclResult_t status =
      nccl.CommInitRankConfig(&handle->comm_, world_size, id, rank, &config);
  if (status != ncclSuccess && status != ncclInProgress) {
    return Fail(handle->ErrorOf(status, kWhat));
  }
  CAIRN_TRY(handle->Arrive(kWhat, deadline));
  return handle;
}

Result<std::unique_ptr<NcclHandle>> NcclHandle::Split(int color, int key, Deadline deadline) {
  constexpr const char* kWhat = "dividing the ranks";
  unfinished_.reset(new NcclHandle(nccl_, stop_));
  ncclConfig_t config = ConfigWithoutBlocking();
  CAIRN_TRY(
      Drain(nccl_.CommSplit(comm_, color, key, &unfinished_->comm_, &config), kWhat, deadline));
  CAIRN_TRY(unfinished_->Arrive(kWhat, deadline));
  return std::move(unfinished_);
}

void NcclHandle::Abort() noexcept {
  ncclComm_t const comm = std::exchange(comm_, nullptr);
  if (comm != nullptr) (void)nccl_.CommAbort(comm);  // if it fails, nothing else can be done
  unfinished_.reset();                               // now no thread of NCCL writes to it any more
}

void NcclHandle::Close(Deadline deadline) noexcept {
  if (comm_ == nullptr) return;
  if (stop_->is_requested() || !Drain(nccl_.CommFinalize(comm_), "closing", deadline))
    return Abort();
  (void)nccl_.CommDestroy(
      std::exchange(comm_, nullptr));  // after CommFinalize this only frees local memory
}

}  // namespace cairn::cuda::internal
