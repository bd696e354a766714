#pragma once
/// NCCL's functions, and an ncclComm_t in non-blocking mode: NCCL works in the background, and
/// every wait for it has a deadline.
///
/// Calls of NCCL return ncclInProgress. Until the asynchronous state of the communicator changes,
/// only ncclCommGetAsyncError and ncclCommAbort may be called on it.

#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cuda/nccl_stop.h"
#include "kv/base/error.h"

namespace cairn::cuda::internal {

using Deadline = std::chrono::steady_clock::time_point;

/// Returns now + `timeout`. Timeouts of more than a year become a year, so that the sum does not
/// overflow.
inline Deadline DeadlineAfter(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::days(365);
  return std::chrono::steady_clock::now() + std::min(timeout, kLongest);
}

/// Calls `ask()`, which returns Result<bool>, at least once, until it returns true or an error.
/// kUnavailable: the deadline passed; the message states `what` was attempted. Cost: short waits
/// spin; long ones wake up every 0.5 ms.
template <typename Ask>
Result<void> Await(const Ask& ask, const char* what, Deadline deadline) {
  constexpr int kSpins = 100;
  constexpr std::chrono::microseconds kLongestPause(500);
  std::chrono::microseconds pause(4);
  for (int i = 0;; ++i) {
    CAIRN_TRY_ASSIGN(const bool done, ask());
    if (done) return {};
    if (std::chrono::steady_clock::now() >= deadline) break;
    if (i < kSpins) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }
  return Fail(ErrorCode::kUnavailable,
              std::string(what) + ": the deadline passed; a rank is late, hangs or has died, or " +
                  "the ranks made different calls");
}

#define CAIRN_FOR_EACH_NCCL_FUNCTION(use)                                                          \
  use(GetVersion) use(GetUniqueId) use(CommInitRankConfig) use(CommSplit) use(CommFinalize)        \
      use(CommDestroy) use(CommAbort) use(CommGetAsyncError) use(GetErrorString) use(GetLastError) \
          use(AllReduce) use(Broadcast) use(Send) use(Recv) use(GroupStart) use(GroupEnd)

/// The NCCL library of this process, which is opened when it is first needed and stays open until
/// the process ends: a build needs only NCCL's header, and programs run without the library.
/// Threads: immutable.
struct NcclLibrary {
  /// The first version with ncclCommSplit.
  static constexpr int kMinVersion = NCCL_VERSION(2, 18, 1);

  /// Opens the file that the environment variable CAIRN_NCCL_LIBRARY names, if it is set. Otherwise
  /// opens libnccl.so.2: if this process has already loaded one, that one, because PyTorch ships
  /// its own and two copies in one process would not know of each other's streams. Threads: safe.
  ///
  /// kFailedPrecondition: there is no such library, or it is older than kMinVersion; the message
  /// states what was found and what to install. The next call tries again.
  static Result<const NcclLibrary*> Open();

  std::string path;
  int version = 0;  // in the form of NCCL_VERSION_CODE

#define CAIRN_DECLARE_NCCL(function) decltype(&::nccl##function) function = nullptr;
  CAIRN_FOR_EACH_NCCL_FUNCTION(CAIRN_DECLARE_NCCL)
#undef CAIRN_DECLARE_NCCL
};

/// Returns a version such as "2.28.9".
std::string FormatNcclVersion(int version);

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
  /// Returns false while NCCL still processes the last call, or the error that occurred in the
  /// background, if any.
  Result<bool> IsIdle(const char* what) const;

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
  Error ErrorOf(ncclResult_t status, const char* what) const;
  /// Waits until NCCL's thread has written `comm_` and the communicator is ready.
  Result<void> Arrive(const char* what, Deadline deadline);

  const NcclLibrary& nccl_;
  const std::shared_ptr<NcclStop> stop_;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<NcclHandle> unfinished_;  // the result of a failed Split, to which NCCL may write
};

}  // namespace cairn::cuda::internal
