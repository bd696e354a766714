// The chunk grid: see the header for the rule.

#include "core/chunk_grid.h"

#include <algorithm>

namespace cairn::core {

Result<ChunkGrid> ChunkGrid::Make(DType dtype, Shape shape, uint64_t chunk_bytes) {
  if (chunk_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument, "chunk_bytes is 0; give at least 1");
  }
  CAIRN_TRY_ASSIGN(const uint64_t total_bytes, TensorBytes(dtype, shape));
  ChunkGrid grid;
  grid.shape_ = std::move(shape);
  grid.element_bytes_ = schema::ElementBytes(dtype);
  if (total_bytes == 0) return grid;
  const size_t dims = grid.shape_.size();
  if (dims == 0) {
    grid.rows_ = 1;
    grid.row_bytes_ = grid.element_bytes_;
    grid.pieces_ = 1;
    grid.chunk_count_ = 1;
    return grid;
  }
  // From the inside out, as long as one index of the dimension still fits.
  grid.split_dim_ = dims - 1;
  grid.row_bytes_ = grid.element_bytes_;
  while (grid.split_dim_ > 0) {
    const uint64_t wider = grid.row_bytes_ * grid.shape_[grid.split_dim_];
    if (wider > chunk_bytes) break;
    grid.row_bytes_ = wider;
    --grid.split_dim_;
  }
  const uint64_t extent = grid.shape_[grid.split_dim_];
  // A single element wider than chunk_bytes still makes a chunk.
  grid.rows_ = std::clamp<uint64_t>(chunk_bytes / grid.row_bytes_, 1, extent);
  grid.pieces_ = extent / grid.rows_ + (extent % grid.rows_ != 0);
  grid.chunk_count_ = grid.pieces_;
  for (size_t d = 0; d < grid.split_dim_; ++d) grid.chunk_count_ *= grid.shape_[d];
  return grid;
}

Box ChunkGrid::chunk(uint64_t i) const {
  CAIRN_CHECK(i < chunk_count_);
  Box box = WholeBox(shape_);
  if (shape_.empty()) return box;
  const uint64_t piece = i % pieces_;
  box.offsets[split_dim_] = piece * rows_;
  box.sizes[split_dim_] = std::min(rows_, shape_[split_dim_] - piece * rows_);
  uint64_t outer = i / pieces_;
  for (size_t d = split_dim_; d-- > 0;) {
    box.offsets[d] = outer % shape_[d];
    box.sizes[d] = 1;
    outer /= shape_[d];
  }
  return box;
}

uint64_t ChunkGrid::offset_bytes(uint64_t i) const {
  CAIRN_CHECK(i < chunk_count_);
  if (shape_.empty()) return 0;
  const uint64_t outer_bytes = row_bytes_ * shape_[split_dim_];
  return (i / pieces_) * outer_bytes + (i % pieces_) * rows_ * row_bytes_;
}

uint64_t ChunkGrid::length_bytes(uint64_t i) const {
  CAIRN_CHECK(i < chunk_count_);
  if (shape_.empty()) return element_bytes_;
  const uint64_t begin = (i % pieces_) * rows_;
  return std::min(rows_, shape_[split_dim_] - begin) * row_bytes_;
}

}  // namespace cairn::core
