#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Divides boxes of tensors into chunks on a grid that depends only on the tensor's shape, its
/// dtype, the chunk size and the inner sizes of the box. Every step therefore has the same keys,
/// and so has every mesh that shards the tensor by rows.
///
/// Let s be the sizes of the box, and k the outermost dimension whose rows (the product of
/// s[k+1..]) fit into `chunk_bytes`. A chunk spans one index of every dimension before k; of
/// dimension k, r = floor(chunk_bytes / row_bytes) indices that begin at a multiple of r in the
/// whole tensor; and all indices of the dimensions after k. The chunks of a box, in key order, are
/// therefore consecutive byte ranges of its row-major payload. Those at its ends may be shorter.

#include <cstdint>
#include <span>
#include <utility>

#include "core/tensor/tensor.h"

namespace cairn::core {

inline constexpr uint64_t kDefaultChunkBytes = 4 << 20;

class ChunkGrid {
 public:
  /// The grid of a complete tensor, or of a box of one. kInvalidArgument: chunk_bytes is 0, the
  /// number of bytes overflows, or the dtype is unknown.
  static Result<ChunkGrid> Make(DType dtype, Shape shape,
                                uint64_t chunk_bytes = kDefaultChunkBytes);
  static Result<ChunkGrid> Make(DType dtype, Box box, uint64_t chunk_bytes);

  const Box& box() const { return box_; }
  /// 1 for a scalar, 0 for a tensor without elements.
  uint64_t chunk_count() const { return chunk_count_; }
  /// The box of chunk i, in row-major (key) order. Requires i < chunk_count().
  Box chunk(uint64_t i) const;
  /// The offset of chunk i in the row-major payload of the box, and its length. Requires
  /// i < chunk_count().
  uint64_t offset_bytes(uint64_t i) const;
  uint64_t length_bytes(uint64_t i) const;

 private:
  ChunkGrid() = default;
  /// Indices [begin, end) of dimension k that belong to chunk `i` along it.
  std::pair<uint64_t, uint64_t> RowsOf(uint64_t i) const;

  Box box_;
  uint64_t element_bytes_ = 0;
  size_t split_dim_ = 0;    // k above; 0 for a scalar
  uint64_t rows_ = 0;       // r above
  uint64_t row_bytes_ = 0;  // bytes of one index of dimension k
  uint64_t first_ = 0;      // the first chunk along dimension k begins at index first_ * r
  uint64_t chunks_along_split_dim_ = 0;
  uint64_t chunk_count_ = 0;
};

}  // namespace cairn::core
