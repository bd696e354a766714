#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Ranks that are processes on one or more hosts and communicate over TCP: our own collectives on
/// Gloo's transport.

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/ranks/communicator.h"
#include "kv/base/error.h"

namespace cairn::core {

/// Returns the messages of all ranks, in the order of ranks. Collective over all ranks.
using MessageAllGather =
    std::function<Result<std::vector<std::string>>(const std::string& message)>;

struct GlooOptions {
  int rank = 0;
  int world_size = 1;

  /// Where the ranks exchange their addresses, the same on all ranks: the address of a storage that
  /// every rank can access (kv/storage/open/open_storage.h), such as "file:///a/directory" or
  /// "s3://bucket/prefix". The ranks create the objects "rendezvous/<run_id>/rank-<rank>" in it,
  /// and remove them once all ranks are connected.
  std::string rendezvous;

  /// Identifies this start of the job: at most 128 letters, digits, '.', '_' and '-', the first not
  /// a '.'. All ranks pass the same ID. A run that dies while it connects leaves its objects
  /// behind, and a new start with the same ID is then refused.
  std::string run_id = "default";

  /// Exchanges the addresses over a channel that the ranks already have, such as a process group of
  /// PyTorch or MPI_Allgatherv; `run_id` and `rendezvous` are then unused. ConnectGloo calls it
  /// exactly once on each rank with valid options, even if the rank cannot listen, so that no other
  /// rank waits for it. Uses the channel's deadline. A message has about 150 bytes per rank, most
  /// of them zero.
  MessageAllGather all_gather;

  /// The interface ("eth0") or the address of this host that the other ranks can reach. Empty: the
  /// interface with the route to the host `route_to`, or, if that is empty, the address that the
  /// host's name resolves to.
  std::string interface;
  std::string route_to;

  /// The longest time between the starts of the first and the last rank. Connecting takes at most
  /// twice as long, and only if a rank hangs after it has reached the rendezvous.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(5);

  /// Deadline of each call on the communicator and on communicators split from it.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

inline constexpr int kMaxGlooRanks = 4096;

/// Connects this rank with all others. Collective over all ranks. The ranks trust each other: a
/// process that can reach the ports can take a rank's place, so they belong in a private network.
///
/// kInvalidArgument: invalid options. kUnavailable: a rank did not arrive in time (named where it
/// is known), or a connection failed. kFailedPrecondition: refused, because the run ID or the rank
/// is in use, or the ranks pass different world sizes. An error of `all_gather` or of the storage
/// is returned, and an exception that `all_gather` throws is not caught.
///
/// A call on the result fails at once when a rank that it waits for has died, and at its deadline
/// when that rank hangs. If the ranks call different collectives, or pass different roots or
/// lengths, the calls fail at the deadline, and nothing outside the given ranges is written. A rank
/// whose call fails closes its connections, so that all other ranks fail at their next call.
///
/// `Interrupt` does not affect communicators split from this one; the other ranks see it as a
/// failed connection. `CheckPeers` reports closed connections.
///
/// Cost: a socket and a listening port per pair of ranks, and one thread shared by a communicator
/// and the communicators split from it. Ranges are sent and received in place. A world of one rank
/// uses none of this: the result is a LocalCommunicator.
Result<std::unique_ptr<Communicator>> ConnectGloo(const GlooOptions& options);

}  // namespace cairn::core
