#pragma once
/// Ranks that exchange bytes, as the Python side sees them.

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/communicator.h"
#include "python/src/errors.h"
#include "python/src/process_guard.h"

namespace cairn::python {

namespace nb = nanobind;

/// A communicator and the lock that its "one call at a time" asks for. Stores share it with Python.
///
/// Threads: any; each waits without the GIL. A signal handler that raises (Ctrl-C) ends the waiting
/// of the main thread at once: the call raises that, and the communicator is left, so that ranks
/// that wait for this one fail at once. In a forked child every member raises Invalid, and the destructor
/// leaves what belongs to the parent alone.
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
  /// Ends the call that is running, if one is.
  void Interrupt();
  /// Requires that the GIL is not held.
  void LeaveWithoutGil();

  ProcessGuard process_;
  std::mutex mutex_;                                  // of one call; taken first
  std::mutex life_mutex_;                             // of making communicator_ null
  std::unique_ptr<core::Communicator> communicator_;  // changed under both; null once left
  int rank_ = 0;
  int world_size_ = 1;
};

}  // namespace cairn::python
