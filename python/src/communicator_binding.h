#pragma once
/// Ranks that exchange bytes, as the Python side sees them.

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/ranks/communicator.h"
#include "core/device/device.h"
#include "cuda/nccl_stop.h"
#include "python/src/errors.h"
#include "python/src/process_guard.h"

namespace cairn::python {

namespace nb = nanobind;

/// A communicator and the lock that its "one call at a time" asks for. Stores share it with Python.
///
/// Threads: any; each waits without the GIL. A signal handler that raises (Ctrl-C) ends the waiting
/// of the main thread at once: the call raises that, and the communicator is left, so that ranks
/// that wait for this one fail at once. NCCL tells nobody that a rank is gone, so while a call runs
/// the connections are looked at, which do tell: a rank that dies, leaves or fails ends the calls
/// over NCCL of the others within a tenth of a second. What NCCL has on a device that is busy is
/// freed in the background: that waits for all that the device runs. In a forked child every member
/// raises Invalid, and the destructor leaves what belongs to the parent alone.
class CommunicatorBinding {
 public:
  /// Connects over TCP; every rank calls it. Arguments as core::GlooOptions, times in seconds.
  /// Raises Unavailable if a rank does not come, Invalid for bad arguments.
  CommunicatorBinding(int rank, int world_size, const std::string& rendezvous,
                      const std::string& run_id, const std::string& interface,
                      double connect_timeout, double timeout);
  /// Of one rank, without connections.
  CommunicatorBinding();
  ~CommunicatorBinding();
  CommunicatorBinding(const CommunicatorBinding&) = delete;
  CommunicatorBinding& operator=(const CommunicatorBinding&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  /// `mine` (bytes) of each rank, as a list in the order of ranks. Collective.
  nb::list AllGather(nb::bytes mine);
  /// From here on tensors may go from device to device over NCCL (see `tensors`); all else goes as
  /// before. Every rank calls it, with a device of its own. Raises what every rank is told:
  /// Invalid, Unavailable; without NCCL the communicator is then what it was.
  /// Connecting alone is given up after `connect_timeout` seconds.
  void ConnectDevices(int device, double connect_timeout);
  /// Gives back what NCCL has, once no rank will use it again. Not collective.
  void DisconnectDevices();
  /// What tensors go over, of the same ranks: NCCL, or null for the way of all else. For `work` of
  /// Use alone. kFailedPrecondition: there is no NCCL any more.
  Result<core::Communicator*> CarrierOf(bool by_nccl) const;

  /// Closes the connections, so that ranks that wait for this one learn of it at once, and a call
  /// that another thread is in. Calls after it raise. May be called again.
  void Leave();

  /// `work(communicator)` under the lock and without the GIL, on a thread of its own. Requires the
  /// GIL. Raises what a signal handler has raised meanwhile.
  template <typename Work>
  auto Use(const Work& work) {
    process_.Check();
    SignalWatch watch;
    auto result = [&] {
      nb::gil_scoped_release no_gil;
      return UseWatched(watch, work);
    }();
    watch.Rethrow();
    return result;
  }
  /// The same for callers that have released the GIL, and let `watch` raise once they have it
  /// again. `work` must not use `watch`. Requires the process that made it.
  template <typename Work>
  auto UseWatched(SignalWatch& watch, const Work& work) {
    using Returned = decltype(work(*communicator_));
    std::optional<Returned> result;
    RunWatched(watch, [&] {
      const std::lock_guard one_call(mutex_);
      result.emplace(communicator_ ? work(*communicator_) : Returned(Gone()));
    });
    return *std::move(result);
  }

 private:
  static std::unexpected<Error> Gone();
  /// Runs `call` on another thread to its end; leaves the communicator once a signal handler
  /// raised.
  void RunWatched(SignalWatch& watch, const std::function<void()>& call);
  /// Ends the call that is running, if one is, and each later one over NCCL, which says `why`.
  void Interrupt(const char* why);
  /// Ends calls over NCCL if a rank is gone, and those beside it if one over NCCL has failed here.
  void WatchRanks();
  /// Requires that the GIL is not held.
  void LeaveWithoutGil();
  /// Frees what NCCL has, where that waits for a busy device behind the caller's back.
  static void GiveBack(std::unique_ptr<core::Communicator> tensors);

  ProcessGuard process_;
  std::mutex mutex_;                                  // of one call; taken first
  std::mutex life_mutex_;                             // of making communicator_ null
  std::unique_ptr<core::Communicator> communicator_;  // changed under both; null once left
  std::unique_ptr<core::Communicator> tensors_;       // changed under both; null without NCCL
  std::shared_ptr<cuda::NcclStop> stop_;  // changed under life_mutex_; of NCCL, connecting or there
  int rank_ = 0;
  int world_size_ = 1;
};

/// How one call reaches tensors on devices.
struct DeviceWay {
  /// Bytes of tensors go over the communicator's NCCL, which all ranks say alike.
  bool by_nccl = false;
  std::vector<core::DeviceStream> streams;  // the caller's
};

/// "2.28.9 (/usr/lib/libnccl.so.2)". Raises Invalid: this process has no NCCL, no driver, no
/// device, or this build no CUDA layer.
std::string DescribeNccl();

}  // namespace cairn::python
