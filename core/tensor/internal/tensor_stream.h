#pragma once
/// Several strided tensors as one run of bytes: what one rank sends or receives, of which rounds
/// take a range each.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"

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
class TensorStream {
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

  /// Where bytes lie.
  struct Place {
    decltype(View::data) run = nullptr;  // null if they lie in more than one run
    int device = kHostDevice;            // also where they lie on more than one
  };
  /// Of bytes [begin, begin + count). Requires count > 0.
  Place PlaceOf(uint64_t begin, uint64_t count) const {
    const auto first = PieceAt(begin);
    Place place{.device = first->view.device};
    if (begin + count <= first->end) {
      if (first->contiguous) place.run = first->view.data + (begin - first->begin);
      return place;
    }
    for (auto piece = first; piece != pieces_.end() && piece->begin < begin + count; ++piece) {
      if (piece->view.device != place.device) place.device = kHostDevice;
    }
    return place;
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

}  // namespace cairn::core::internal
