#pragma once
/// Cuts boxes of tensors into chunks on a grid that depends only on the tensor's shape, its dtype,
/// the chunk size and the box's inner sizes, so that the same keys recur from step to step, and
/// from mesh to mesh where tensors are sharded by rows.
///
/// With row-major box sizes s, find the outermost dimension k whose inner rows (product of
/// s[k+1..]) fit into `chunk_bytes`. A chunk spans one index of every dimension before k, r =
/// floor(chunk_bytes / row_bytes) indices of dimension k, from a multiple of r in the whole tensor
/// on, and all of what follows. Chunks of a box, in key order, are therefore consecutive byte
/// ranges of its row-major payload; those at its ends may be short.

#include <cstdint>
#include <span>
#include <utility>

#include "core/tensor/tensor.h"

namespace cairn::core {

inline constexpr uint64_t kDefaultChunkBytes = 4 << 20;

class ChunkGrid {
 public:
  /// kInvalidArgument: chunk_bytes is 0, an overflowing shape or an unknown dtype.
  static Result<ChunkGrid> Make(DType dtype, Shape shape,
                                uint64_t chunk_bytes = kDefaultChunkBytes);
  /// The same for a box of a tensor.
  static Result<ChunkGrid> Make(DType dtype, Box box, uint64_t chunk_bytes);

  const Box& box() const { return box_; }
  /// 1 for a scalar, 0 for a tensor without elements.
  uint64_t chunk_count() const { return chunk_count_; }
  /// Box of chunk i in row-major (key) order. Requires i < chunk_count().
  Box chunk(uint64_t i) const;
  /// Where chunk i begins in the row-major payload of the box, and its length.
  uint64_t offset_bytes(uint64_t i) const;
  uint64_t length_bytes(uint64_t i) const;

 private:
  ChunkGrid() = default;
  /// Indices [begin, end) of dimension k that piece `piece` of it takes.
  std::pair<uint64_t, uint64_t> PieceRange(uint64_t piece) const;

  Box box_;
  uint64_t element_bytes_ = 0;
  size_t split_dim_ = 0;    // k above; 0 for a scalar
  uint64_t rows_ = 0;       // r above
  uint64_t row_bytes_ = 0;  // bytes of one index of dimension k
  uint64_t first_ = 0;      // multiple of r at which the first chunk along dimension k begins
  uint64_t pieces_ = 0;     // chunks along dimension k
  uint64_t chunk_count_ = 0;
};

}  // namespace cairn::core
