#pragma once
/// The schedule of an exchange: which bytes are sent between which ranks in which round, if ranges
/// of any length pass through buffers of bounded length. Independent of CUDA and NCCL.
///
/// Each rank computes its rounds alone, from the lengths that it sends and receives. The two ranks
/// of a transfer cut it in the same way, because the length of a slice depends only on values that
/// all ranks agree on:
///   - Peers are processed in windows of distances: in the first window a rank sends to the ranks
///     1, 2, ... after it and receives from the ranks 1, 2, ... before it. A sender and its
///     receiver see the same distance, so the transfer is in the same window for both.
///   - Within its window a range is transferred slice by slice, one per round.
/// The pairs (window, slice) number the rounds of all ranks in common. A rank skips the rounds in
/// which it has nothing to transfer and processes the others in ascending order. All ranks of the
/// first unfinished round are therefore in that round or will reach it, and no ranks wait for each
/// other in a cycle.
///
/// Threads: these types have no state in common; one thread at a time may use an object.

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::cuda::internal {

/// The division of the buffers. All ranks of an exchange use the same layout.
struct ChunkLayout {
  /// The slice length that is large enough to use a connection well; slices are this long unless
  /// the buffers are too small.
  static constexpr uint64_t kWantedSliceBytes = 1 << 20;
  /// Slices begin at multiples of this in the buffers.
  static constexpr uint64_t kAlignmentBytes = 256;
  /// The halves of a buffer are used alternately. Each half has the same number of slots for bytes
  /// to send as for received bytes.
  static constexpr uint64_t kHalves = 2;

  int peers_per_round = 1;  // limit of both the sends and the receives of a round
  uint64_t slice_bytes = 0;

  /// Requires `world_size` > 0 and `buffer_bytes` >= MinBufferBytes(), which is room for one slice
  /// of kAlignmentBytes per slot.
  static ChunkLayout Of(int world_size, uint64_t buffer_bytes);
  static constexpr uint64_t MinBufferBytes() { return 2 * kHalves * kAlignmentBytes; }

  uint64_t slots_per_half() const { return 2 * static_cast<uint64_t>(peers_per_round); }
  uint64_t half_bytes() const { return slots_per_half() * slice_bytes; }
};

/// Bytes [offset, offset + length) of the range that is sent to or received from one peer.
struct PeerSlice {
  int peer = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t slot = 0;  // below slots_per_half(); unique within the round

  friend bool operator==(const PeerSlice&, const PeerSlice&) = default;
};

/// The transfers of one rank at a time. Its peers transfer their parts in the same round.
struct Round {
  std::vector<PeerSlice> sends;
  std::vector<PeerSlice> receives;
};

/// The rounds of one rank, in order.
class ExchangeRounds {
 public:
  /// `sent_bytes[i]` is the length sent to rank i, `received_bytes[i]` the length received from it;
  /// the entries of `rank` itself are ignored. Requires that both have one length per rank, and
  /// that `rank` is one of these.
  ExchangeRounds(const ChunkLayout& layout, int rank, std::span<const uint64_t> sent_bytes,
                 std::span<const uint64_t> received_bytes);

  /// Sets `round` to the next round. Returns false at the end.
  bool Next(Round& round);

 private:
  void AddSlice(std::vector<PeerSlice>& slices, const std::vector<uint64_t>& lengths, int peer,
                uint64_t slot) const;
  int PeerAfter(int distance) const { return (rank_ + distance) % world_size_; }
  int PeerBefore(int distance) const { return (rank_ - distance + world_size_) % world_size_; }

  const ChunkLayout layout_;
  const int rank_;
  const int world_size_;
  const std::vector<uint64_t> sent_bytes_;
  const std::vector<uint64_t> received_bytes_;
  int window_begin_ = 1;  // distances [window_begin_, window_begin_ + peers_per_round)
  uint64_t slice_ = 0;    // number of the slice of every range of the window
};

}  // namespace cairn::cuda::internal
