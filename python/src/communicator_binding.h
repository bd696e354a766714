#pragma once
/// The communicator of the Python side.

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/ranks/gloo_communicator.h"
#include "cuda/nccl_stop.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/process_guard.h"

namespace cairn::python {

namespace nb = nanobind;

/// A communicator, and the lock that ensures one call at a time. Stores share it with Python.
///
/// Threads: any; each waits without the GIL. A signal handler that raises (Ctrl-C) ends a call of
/// the main thread at once: the call raises the exception of the handler and leaves the
/// communicator, so that ranks that wait for this one fail at once.
///
/// NCCL does not report that a rank is gone, but Gloo's connections do. They are checked while a
/// call runs: when a rank dies, leaves or fails, the calls of the other ranks over NCCL end within
/// a tenth of a second. Resources of NCCL on a busy device are freed in the background, because
/// freeing waits for all work of the device.
///
/// In a forked child every member raises Invalid, and the destructor does not touch what belongs to
/// the parent.
class CommunicatorBinding {
 public:
  /// Connects over TCP. Collective. Raises Unavailable if a rank does not connect in time, and
  /// Invalid for bad options.
  explicit CommunicatorBinding(const core::GlooOptions& options);
  /// Creates a communicator of one rank, without connections.
  CommunicatorBinding();
  ~CommunicatorBinding();
  CommunicatorBinding(const CommunicatorBinding&) = delete;
  CommunicatorBinding& operator=(const CommunicatorBinding&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  /// Returns the name of the call that each rank begins, in the order of ranks. Collective, within
  /// `timeout` seconds. Raises Invalid for a name of kMaxCallBytes.
  nb::list Arrive(const std::string& call, double timeout);
  static constexpr size_t kMaxCallBytes = 32;
  /// Returns the bytes `mine` of each rank as a list, in the order of ranks. Collective.
  nb::list AllGather(nb::bytes mine);
  /// Connects the ranks over NCCL, so that tensors can be sent from device to device (see
  /// TensorCommunicator); everything else continues to use TCP. Collective; each rank gives its own
  /// device. If a rank fails, or after `connect_timeout` seconds, every rank raises the same error
  /// (Invalid or Unavailable), and the communicator continues without NCCL.
  void ConnectDevices(int device, double connect_timeout);
  /// Releases the resources of NCCL. Call it when no rank will use NCCL again. Not collective.
  void DisconnectDevices();
  /// Returns the NCCL communicator of the same ranks if `by_nccl`, otherwise null, which means that
  /// tensors are sent like everything else. Only `work` of Use or UseWatched may call it.
  /// kFailedPrecondition: NCCL was disconnected.
  Result<core::Communicator*> TensorCommunicator(bool by_nccl) const;

  /// Closes the connections and ends the call that another thread is in, so that ranks that wait
  /// for this one fail at once. Later calls raise Invalid, which contains `why` of the first time.
  void Leave(const std::string& why);

  /// Returns `work(communicator)`, which runs on another thread with the lock and without the GIL.
  /// Raises the exception of a signal handler that raised during the call. Requires the GIL.
  template <typename Work>
  auto Use(const Work& work) {
    process_.Check();
    SignalWatch watch;
    auto result = [&] {
      const GilRelease no_gil;
      return UseWatched(watch, work);
    }();
    watch.Rethrow();
    return result;
  }
  /// Returns `work(communicator)`, which runs on another thread with the lock. Requires that the
  /// caller has released the GIL, and that this is the process that created the object. The caller
  /// calls `watch.Rethrow()` when it has the GIL again. `work` must not use `watch`.
  template <typename Work>
  auto UseWatched(SignalWatch& watch, const Work& work) {
    using Returned = decltype(work(*communicator_));
    std::optional<Returned> result;
    auto ran = RunWatched(watch, [&] {
      const std::lock_guard one_call(mutex_);
      result.emplace(communicator_ ? work(*communicator_) : Returned(LeftError()));
    });
    return ran ? *std::move(result) : Returned(Fail(std::move(ran).error()));
  }

 private:
  /// Requires `mutex_`.
  std::unexpected<Error> LeftError() const;
  /// Runs `call` on another thread until it ends. Leaves the communicator if a signal handler
  /// raised. kResourceExhausted: the thread could not be started, and `call` did not run.
  Result<void> RunWatched(SignalWatch& watch, const std::function<void()>& call);
  /// Ends the running call, if there is one, and every later call over NCCL, with the message
  /// `why`.
  void Interrupt(const char* why);
  /// Ends calls over NCCL if a rank is gone, and calls over TCP if one over NCCL has failed here.
  void WatchRanks();
  /// Requires that the GIL is not held.
  void LeaveWithoutGil(const std::string& why);
  /// Destroys an NCCL communicator; continues in the background if the device is busy.
  static void Release(std::unique_ptr<core::Communicator> tensors);

  ProcessGuard process_;
  // The first two pointers are changed with both mutexes held and read with either of them, which
  // thread annotations cannot express.
  std::mutex mutex_;                                  // held during a call; taken first
  std::mutex life_mutex_;                             // held only briefly
  std::unique_ptr<core::Communicator> communicator_;  // null after Leave
  std::string why_left_;                              // changed with both mutexes held
  std::unique_ptr<core::Communicator> tensors_;       // null without NCCL
  std::shared_ptr<cuda::NcclStop> stop_;  // shared with NCCL; changed with life_mutex_ held
  std::vector<SignalWatch*> watches_;     // of the calls that run or wait; with life_mutex_ held
  int rank_ = 0;
  int world_size_ = 1;
};

/// Returns the version and the file of NCCL, such as "2.28.9 (/usr/lib/libnccl.so.2)". Raises
/// Invalid if there is no NCCL, no driver or no device, or if this build has no CUDA layer.
std::string DescribeNccl();

}  // namespace cairn::python
