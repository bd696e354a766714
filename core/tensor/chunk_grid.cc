#include "core/tensor/chunk_grid.h"

#include <algorithm>

namespace cairn::core {

Result<ChunkGrid> ChunkGrid::Make(DType dtype, Shape shape, uint64_t chunk_bytes) {
  return Make(dtype, WholeBox(shape), chunk_bytes);
}

Result<ChunkGrid> ChunkGrid::Make(DType dtype, Box box, uint64_t chunk_bytes) {
  if (chunk_bytes == 0) {
    return Fail(ErrorCode::kInvalidArgument, "chunk_bytes is 0; give at least 1");
  }
  CAIRN_TRY_ASSIGN(const uint64_t total_bytes, TensorBytes(dtype, box.sizes));
  ChunkGrid grid;
  grid.box_ = std::move(box);
  grid.element_bytes_ = schema::ElementBytes(dtype);
  if (total_bytes == 0) return grid;
  const Shape& sizes = grid.box_.sizes;
  const size_t dims = sizes.size();
  if (dims == 0) {
    grid.chunks_along_split_dim_ = 1;
    grid.chunk_count_ = 1;
    return grid;
  }
  // Moves outwards while all indices of the inner dimension fit into a chunk.
  grid.split_dim_ = dims - 1;
  grid.row_bytes_ = grid.element_bytes_;
  while (grid.split_dim_ > 0) {
    const uint64_t wider = grid.row_bytes_ * sizes[grid.split_dim_];
    if (wider > chunk_bytes) break;
    grid.row_bytes_ = wider;
    --grid.split_dim_;
  }
  // A single element that is larger than chunk_bytes is a chunk.
  grid.rows_ = std::max<uint64_t>(chunk_bytes / grid.row_bytes_, 1);
  const uint64_t begin = grid.box_.offsets[grid.split_dim_];
  const uint64_t last = begin + sizes[grid.split_dim_] - 1;
  grid.first_ = begin / grid.rows_;
  grid.chunks_along_split_dim_ = last / grid.rows_ - grid.first_ + 1;
  grid.chunk_count_ = grid.chunks_along_split_dim_;
  for (size_t d = 0; d < grid.split_dim_; ++d) grid.chunk_count_ *= sizes[d];
  return grid;
}

std::pair<uint64_t, uint64_t> ChunkGrid::RowsOf(uint64_t i) const {
  const uint64_t begin = box_.offsets[split_dim_];
  const uint64_t end = begin + box_.sizes[split_dim_];
  const uint64_t cell = (first_ + i) * rows_;
  return {std::max(begin, cell), end - cell > rows_ ? cell + rows_ : end};
}

Box ChunkGrid::chunk(uint64_t i) const {
  CAIRN_CHECK(i < chunk_count_);
  Box box = box_;
  if (box.sizes.empty()) return box;
  const auto [begin, end] = RowsOf(i % chunks_along_split_dim_);
  box.offsets[split_dim_] = begin;
  box.sizes[split_dim_] = end - begin;
  uint64_t outer = i / chunks_along_split_dim_;
  for (size_t d = split_dim_; d-- > 0;) {
    box.offsets[d] = box_.offsets[d] + outer % box_.sizes[d];
    box.sizes[d] = 1;
    outer /= box_.sizes[d];
  }
  return box;
}

uint64_t ChunkGrid::offset_bytes(uint64_t i) const {
  CAIRN_CHECK(i < chunk_count_);
  if (box_.sizes.empty()) return 0;
  const uint64_t row = RowsOf(i % chunks_along_split_dim_).first - box_.offsets[split_dim_];
  return ((i / chunks_along_split_dim_) * box_.sizes[split_dim_] + row) * row_bytes_;
}

uint64_t ChunkGrid::length_bytes(uint64_t i) const {
  CAIRN_CHECK(i < chunk_count_);
  if (box_.sizes.empty()) return element_bytes_;
  const auto [begin, end] = RowsOf(i % chunks_along_split_dim_);
  return (end - begin) * row_bytes_;
}

}  // namespace cairn::core
