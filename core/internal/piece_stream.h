#pragma once
/// Several strided tensors as one run of bytes: what one rank sends or receives, of which rounds
/// take a range each.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/host_memory.h"
#include "core/strided_copy.h"

namespace cairn::core::internal {

/// The part of a TensorView or TensorTarget that `box` says. Requires a box inside its shape.
template <typename View>
View NarrowTo(const View& view, const Box& box) {
  View part = view;
  part.shape = box.sizes;
  if (view.strides.empty()) part.strides = RowMajorStrides(view.shape);
  if (view.data == nullptr) return part;
  uint64_t elements = 0;
  for (size_t d = 0; d < box.sizes.size(); ++d) elements += box.offsets[d] * part.strides[d];
  part.data = view.data + elements * schema::ElementBytes(view.dtype);
  return part;
}

/// The row-major bytes of tensors, one tensor after the other. View: TensorView or TensorTarget.
/// Threads: as a vector.
template <typename View>
class PieceStream {
 public:
  /// Requires a dtype and shape that TensorBytes accepts.
  void Add(View view) {
    const uint64_t length_bytes = *TensorBytes(view.dtype, view.shape);
    if (length_bytes == 0) return;
    const bool contiguous = IsContiguous(view.shape, view.strides);
    pieces_.push_back({length_bytes_, length_bytes_ + length_bytes, contiguous, std::move(view)});
    length_bytes_ += length_bytes;
  }
  uint64_t length_bytes() const { return length_bytes_; }

  /// Where bytes [begin, begin + count) lie if they lie in one run; else null. Requires count > 0.
  decltype(View::data) RunAt(uint64_t begin, uint64_t count) const {
    const Piece& piece = *PieceAt(begin);
    if (!piece.contiguous || begin + count > piece.end) return nullptr;
    return piece.view.data + (begin - piece.begin);
  }

  /// Calls `move(view, first byte in view, first byte in range, count)` for the tensors that
  /// [begin, begin + count) touches.
  template <typename Move>
  void ForEach(uint64_t begin, uint64_t count, const Move& move) const {
    if (count == 0) return;
    const uint64_t end = begin + count;
    for (auto piece = PieceAt(begin); piece != pieces_.end() && piece->begin < end; ++piece) {
      const uint64_t from = std::max(begin, piece->begin);
      move(piece->view, from - piece->begin, from - begin, std::min(end, piece->end) - from);
    }
  }

 private:
  struct Piece {
    uint64_t begin = 0;  // in the stream, bytes
    uint64_t end = 0;
    bool contiguous = false;
    View view;
  };
  auto PieceAt(uint64_t begin) const {
    return std::ranges::upper_bound(pieces_, begin, {}, &Piece::end);
  }

  std::vector<Piece> pieces_;
  uint64_t length_bytes_ = 0;
};

inline void ReadStream(const PieceStream<TensorView>& stream, uint64_t begin,
                       std::span<std::byte> bytes) {
  stream.ForEach(begin, bytes.size(),
                 [&](const TensorView& view, uint64_t in_view, uint64_t at, uint64_t count) {
                   GatherBytes(view, in_view, bytes.subspan(at, count));
                 });
}

inline void WriteStream(const PieceStream<TensorTarget>& stream, uint64_t begin,
                        std::span<const std::byte> bytes) {
  stream.ForEach(begin, bytes.size(),
                 [&](const TensorTarget& target, uint64_t in_target, uint64_t at, uint64_t count) {
                   ScatterBytes(bytes.subspan(at, count), target, in_target);
                 });
}

/// The range that round `round` of `rounds` takes of a stream. Rounds share every stream evenly, so
/// that long and short ones end together; all of the ranges of one round are at most one byte a
/// stream longer than the sum of the streams divided by the rounds.
struct RoundRange {
  uint64_t begin = 0;
  uint64_t count = 0;
};
inline RoundRange RangeOfRound(uint64_t length_bytes, uint64_t round, uint64_t rounds) {
  using Wide = unsigned __int128;
  const auto begin = static_cast<uint64_t>(Wide{length_bytes} * round / rounds);
  const auto end = static_cast<uint64_t>(Wide{length_bytes} * (round + 1) / rounds);
  return {begin, end - begin};
}

/// Memory for what does not lie in one run, handed out anew each round.
class RoundBuffer {
 public:
  static Result<RoundBuffer> Make(uint64_t capacity_bytes) {
    RoundBuffer buffer;
    CAIRN_TRY_ASSIGN(buffer.memory_, HostMemory::Allocate(capacity_bytes));
    return buffer;
  }
  void Reset() { used_bytes_ = 0; }
  /// Requires that the round's takes fit: rounds are planned so.
  std::span<std::byte> Take(uint64_t count) {
    CAIRN_CHECK(count <= memory_.bytes().size() - used_bytes_);
    const auto taken = memory_.bytes().subspan(used_bytes_, count);
    used_bytes_ += count;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    return taken;
  }
  uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  HostMemory memory_;  // pages that no round reaches are never there
  uint64_t used_bytes_ = 0;
  uint64_t peak_bytes_ = 0;
};

}  // namespace cairn::core::internal
