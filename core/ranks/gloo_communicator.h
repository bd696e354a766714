#pragma once
/// Ranks that are processes on one host or several, over TCP: Gloo's transport below our own
/// collectives.

#include <chrono>
#include <memory>
#include <string>

#include "core/ranks/communicator.h"
#include "kv/error.h"

namespace cairn::core {

struct GlooOptions {
  int rank = 0;
  int world_size = 1;

  /// Where the ranks find each other, the same for all of them:
  ///   "file:///a/directory"  that every rank sees; a sub-directory named by the run is made in it
  ///                          and removed once all ranks are connected
  ///   "tcp://host:port"      an address of rank 0, which listens there until all are connected
  std::string rendezvous;

  /// Names this start of the job: letters, digits, '.', '_' and '-', at most 128, and not of dots
  /// alone. All ranks give the same one. Ranks of another run are refused. A run that died while it
  /// connected leaves its sub-directory behind: a new start takes a new name, else it is refused.
  std::string run_id = "default";

  /// The interface ("eth0") or address of this host that the other ranks reach. Empty: the one that
  /// leads to the rendezvous' host, or with files the one that the host's name stands for.
  std::string interface;

  /// How far apart the ranks may start. Connecting takes at most twice this, and that only if a
  /// rank hangs after it has come to the rendezvous.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);

  /// Of each call on the communicator, and on those split from it.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

inline constexpr int kMaxGlooRanks = 4096;

/// Connects this rank with all others; every rank calls it. The ranks are trusted: whoever reaches
/// the ports can take a rank's place, so keep them in a network of the job's own.
///
/// kInvalidArgument: bad options. kUnavailable: a rank did not come in time (named where it is
/// known), or no connection to it. kFailedPrecondition: refused, as the run id or the rank is
/// taken, or the world is of another size.
///
/// A call on the result fails at once when a rank that it waits for has died, and at its deadline
/// when that rank hangs. Ranks that call different collectives, roots or lengths fail at the
/// deadline; no byte is written outside of the given ranges. A failed connection is noticed by all
/// ranks at their next call, as each closes its own.
///
/// Cost: a socket and a listening port for each pair of ranks, a thread for each communicator and
/// those split from it; ranges are sent from and received to where they lie. World size 1: nothing
/// of this, a LocalCommunicator.
Result<std::unique_ptr<Communicator>> ConnectGloo(const GlooOptions& options);

/// Ends the call that another thread is in, and each later one, with kUnavailable, at once; the
/// other ranks learn of it as of any failed connection. Not communicators split from it. Does
/// nothing to one that ConnectGloo has not made. Threads: any, beside a call.
void InterruptGloo(Communicator& communicator);

/// kUnavailable, naming the rank: its connection is gone, as a call that needed it would find. For
/// ranks that wait for each other elsewhere, where nobody tells them. Does not wait; success for
/// one that ConnectGloo has not made. Threads: any, beside a call.
Result<void> CheckGlooConnections(Communicator& communicator);

}  // namespace cairn::core
