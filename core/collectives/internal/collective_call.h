#pragma once
/// Code that all collectives on state dicts share: communicators, buffers and reports.

#include <cstdint>
#include <set>

#include "core/collectives/broadcast_options.h"
#include "core/ranks/communicator.h"
#include "core/ranks/internal/round_mover.h"

namespace cairn::core::internal {

/// One call of a collective on this rank. Ownership: borrows its arguments. Threads: one.
struct CollectiveCall {
  /// Options: GatherOptions or BroadcastOptions.
  template <typename Options>
  CollectiveCall(Communicator& communicator_in, const Options& options)
      : communicator(communicator_in),
        carrier(options.tensor_communicator == nullptr ? communicator_in
                                                       : *options.tensor_communicator),
        rank(static_cast<uint32_t>(communicator_in.rank())),
        world_size(static_cast<uint32_t>(communicator_in.world_size())),
        buffer_bytes(options.buffer_bytes),
        streams(options.streams),
        report(options.report) {}

  /// kInvalidArgument: the buffer has fewer than 4 bytes per rank.
  Result<void> CheckBuffer() const;
  /// Creates the mover of all rounds, for tensors on `devices`.
  Result<RoundMover> MakeMover(const std::set<int>& devices) const;
  /// Writes `moved` to the caller's report, if there is one.
  void Report(TransferReport moved, const RoundMover& mover) const;

  Communicator& communicator;
  Communicator& carrier;  // sends the tensors
  const uint32_t rank;
  const uint32_t world_size;
  const uint64_t buffer_bytes;
  const std::span<const DeviceStream> streams;
  TransferReport* const report;  // may be null
};

}  // namespace cairn::core::internal
