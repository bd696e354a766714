#pragma once
/// Code that all collectives on state dicts share: communicators, buffers and rounds.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "core/collectives/state_dict_collectives.h"
#include "core/ranks/communicator.h"
#include "core/ranks/internal/round_mover.h"
#include "core/tensor/internal/tensor_stream.h"
#include "kv/base/div.h"

namespace cairn::core::internal {

/// Bytes that one rank sends to others, the same to each of them. All ranks know all streams.
struct PeerStream {
  uint32_t sender = 0;
  std::vector<uint32_t> receivers;  // ascending
  uint64_t length_bytes = 0;
  TensorStream<TensorView> source;    // on the sender
  TensorStream<TensorTarget> target;  // on a receiver
};

/// One call of a collective on this rank. Ownership: borrows its arguments. Threads: one.
struct CollectiveCall {
  CollectiveCall(Communicator& communicator_in, const CollectiveOptions& options_in)
      : options(options_in),
        communicator(communicator_in),
        carrier(options.tensor_communicator == nullptr ? communicator_in
                                                       : *options.tensor_communicator),
        rank(static_cast<uint32_t>(communicator_in.rank())),
        world_size(static_cast<uint32_t>(communicator_in.world_size())) {}

  /// kInvalidArgument: the buffer has fewer than 4 bytes per rank.
  Result<void> CheckBuffer() const {
    if (options.buffer_bytes >= 4 * uint64_t{world_size}) return {};
    return Fail(ErrorCode::kInvalidArgument,
                fmt::format("a buffer of {} bytes for {} ranks; it needs at least 4 per rank",
                            options.buffer_bytes, world_size));
  }
  /// Creates the mover of all rounds, for tensors on `devices`.
  Result<RoundMover> MakeMover(const std::set<int>& devices) const {
    return RoundMover::Make(carrier, options.buffer_bytes, devices, options.streams);
  }
  /// Sends all streams, which have `total_bytes`, in rounds of about `round_bytes`. A round sends
  /// the same share of each stream. At most one stream has the same sender and receiver as another.
  Result<void> Move(std::span<const PeerStream> streams, uint64_t total_bytes, uint64_t round_bytes,
                    RoundMover& mover) const {
    const uint64_t rounds = DivCeil(total_bytes, round_bytes);
    for (uint64_t round = 0; round < rounds; ++round) {
      mover.Begin();
      std::vector<ByteView> sent(world_size);
      std::vector<ByteTarget> received(world_size);
      for (const PeerStream& stream : streams) {
        const auto [begin, count] = RangeOfRound(stream.length_bytes, round, rounds);
        if (stream.sender == rank) {
          CAIRN_TRY_ASSIGN(const ByteView bytes, mover.Source(stream.source, begin, count));
          for (const uint32_t receiver : stream.receivers) sent[receiver] = bytes;
        }
        if (std::ranges::binary_search(stream.receivers, rank)) {
          received[stream.sender] = mover.Target(stream.target, begin, count);
        }
      }
      CAIRN_TRY(mover.Packed());
      CAIRN_TRY(carrier.AllToAll(sent, received));
      CAIRN_TRY(mover.Unpack());
    }
    return {};
  }

  const CollectiveOptions& options;
  Communicator& communicator;
  Communicator& carrier;  // sends the tensors
  const uint32_t rank;
  const uint32_t world_size;
};

}  // namespace cairn::core::internal
