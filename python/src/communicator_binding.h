#pragma once
/// Ranks that exchange bytes, as the Python side sees them.

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <string>

#include "core/communicator.h"
#include "python/src/errors.h"
#include "python/src/process_guard.h"

namespace cairn::python {

namespace nb = nanobind;

/// A communicator and the lock that its "one call at a time" asks for. Stores share it with Python.
///
/// Threads: any; each waits without the GIL. In a forked child every member raises Invalid, and the
/// destructor leaves what belongs to the parent alone.
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
  /// Closes the connections, so that ranks that wait for this one learn of it at once. Calls after
  /// it raise. May be called again.
  void Leave();

  /// `work(communicator)` under the lock and without the GIL. Requires the GIL.
  template <typename Work>
  auto Use(const Work& work) {
    using Returned = decltype(work(*communicator_));
    process_.Check();
    nb::gil_scoped_release no_gil;
    const std::lock_guard one_call(mutex_);
    if (!communicator_) return Returned(Gone());
    return work(*communicator_);
  }
  /// The same for callers that have released the GIL. Requires the process that made it.
  template <typename Work>
  auto UseWithoutGil(const Work& work) {
    using Returned = decltype(work(*communicator_));
    const std::lock_guard one_call(mutex_);
    if (!communicator_) return Returned(Gone());
    return work(*communicator_);
  }

 private:
  static std::unexpected<Error> Gone();

  ProcessGuard process_;
  std::mutex mutex_;
  std::unique_ptr<core::Communicator> communicator_;  // guarded by mutex_; null once left
  int rank_ = 0;
  int world_size_ = 1;
};

}  // namespace cairn::python
