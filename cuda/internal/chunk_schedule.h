#pragma once
/// Which bytes go between which ranks in which round, when ranges of any length pass through
/// buffers of bounded length. Nothing here knows CUDA or NCCL.
///
/// Each rank computes its rounds alone, from the lengths that it gives and takes. What two ranks
/// exchange is cut alike on both sides, as the length of a piece depends only on what all ranks
/// agree on:
///   - Peers are taken in windows of distances: in the first one a rank sends to those 1, 2, ...
///     behind it and receives from those 1, 2, ... before it. A sender and its receiver see one
///     distance, so one window.
///   - In its window a range goes piece by piece, one a round.
/// (window, piece) numbers the rounds of all ranks together. A rank skips those in which it has
/// nothing, and goes through its own in ascending order: so the first round that is not over has
/// all its ranks there or on their way to it, and no ranks wait for each other in a circle.
///
/// Threads: as a vector.

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::cuda::internal {

/// How the buffers are divided. All ranks that exchange have the same.
struct ChunkLayout {
  /// So much is taken to be worth a message, where the buffers allow it.
  static constexpr uint64_t kWantedPieceBytes = 1 << 20;
  /// Pieces begin at multiples of this in the buffers.
  static constexpr uint64_t kAlignmentBytes = 256;
  /// Halves of a buffer take turns; each has as many slots for what is sent as for what arrives.
  static constexpr uint64_t kHalves = 2;

  int peers_a_round = 1;  // so many sends and so many receives at most
  uint64_t piece_bytes = 0;

  /// Requires room for one piece of kAlignmentBytes: MinBufferBytes.
  static ChunkLayout Of(int world_size, uint64_t buffer_bytes);
  static constexpr uint64_t MinBufferBytes() { return 2 * kHalves * kAlignmentBytes; }

  uint64_t slots_a_half() const { return 2 * static_cast<uint64_t>(peers_a_round); }
  uint64_t half_bytes() const { return slots_a_half() * piece_bytes; }
};

/// Bytes [offset, offset + length) of the range that a peer gets or gives.
struct Piece {
  int peer = 0;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  uint64_t slot = 0;  // below slots_a_half(), no other piece of the round has it

  friend bool operator==(const Piece&, const Piece&) = default;
};

/// What one rank moves at a time. Its peers move theirs in the same round of their own.
struct Round {
  std::vector<Piece> sends;
  std::vector<Piece> receives;
};

/// The rounds of one rank, one after the other.
class ExchangeRounds {
 public:
  /// `sent_bytes[i]` goes to rank i and `received_bytes[i]` comes from it; what a rank has for
  /// itself is not looked at. Requires one length a rank on both sides.
  ExchangeRounds(const ChunkLayout& layout, int rank, std::span<const uint64_t> sent_bytes,
                 std::span<const uint64_t> received_bytes);

  /// Fills `round` with the next one; false at the end.
  bool Next(Round& round);

 private:
  void AddPiece(std::vector<Piece>& pieces, const std::vector<uint64_t>& lengths, int peer,
                uint64_t slot) const;
  int PeerAfter(int distance) const { return (rank_ + distance) % world_size_; }
  int PeerBefore(int distance) const { return (rank_ - distance + world_size_) % world_size_; }

  const ChunkLayout layout_;
  const int rank_;
  const int world_size_;
  const std::vector<uint64_t> sent_bytes_;
  const std::vector<uint64_t> received_bytes_;
  int window_begin_ = 1;  // distances [window_begin_, window_begin_ + peers_a_round)
  uint64_t piece_ = 0;    // of every range of the window
};

}  // namespace cairn::cuda::internal
