#pragma once
/// Code that all collectives on state dicts share: communicators, buffers and reports.

#include <fmt/format.h>

#include <cstdint>
#include <set>

#include "core/collectives/state_dict_collectives.h"
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
  Result<void> CheckBuffer() const {
    if (buffer_bytes >= 4 * uint64_t{world_size}) return {};
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a buffer of {} bytes for {} ranks; it needs at least 4 per rank",
                            buffer_bytes, world_size));
  }
  /// Creates the mover of all rounds, for tensors on `devices`.
  Result<RoundMover> MakeMover(const std::set<int>& devices) const {
    return RoundMover::Make(carrier, buffer_bytes, devices, streams);
  }
  /// Writes `moved` to the caller's report, if there is one.
  void Report(TransferReport moved, const RoundMover& mover) const {
    if (report == nullptr) return;
    moved.peak_buffer_bytes = mover.peak_bytes();
    *report = moved;
  }

  Communicator& communicator;
  Communicator& carrier;  // sends the tensors
  const uint32_t rank;
  const uint32_t world_size;
  const uint64_t buffer_bytes;
  const std::span<const DeviceStream> streams;
  TransferReport* const report;  // may be null
};

}  // namespace cairn::core::internal
