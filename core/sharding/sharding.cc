// From local tensors to boxes of global ones.

#include "core/sharding/sharding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cairn::core {
namespace {

std::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message));
}

bool IsEmpty(std::span<const uint64_t> sizes) {
  return std::ranges::find(sizes, uint64_t{0}) != sizes.end();
}

// The part of `local` that begins at `offsets` and has `sizes`.
Result<TensorView> Narrow(const TensorView& local, std::span<const uint64_t> offsets,
                          const Shape& sizes) {
  TensorView view = local;
  view.shape = sizes;
  if (local.shape == sizes) return view;
  view.strides = local.strides.empty() ? RowMajorStrides(local.shape) : local.strides;
  if (local.data == nullptr) return view;
  uint64_t elements = 0;
  for (size_t d = 0; d < sizes.size(); ++d) elements += offsets[d] * view.strides[d];
  view.data = local.data + elements * schema::ElementBytes(local.dtype);
  return view;
}

Result<std::vector<LocalPiece>> PiecesOfParts(const Sharding& sharding, DType dtype) {
  std::vector<LocalPiece> pieces;
  for (const Sharding::Part& part : sharding.parts) {
    if (!BoxFits(part.box, sharding.global_shape)) {
      return Invalid(fmt::format("a shard at [{}] of sizes [{}] leaves the global shape [{}]",
                                 fmt::join(part.box.offsets, ", "), fmt::join(part.box.sizes, ", "),
                                 fmt::join(sharding.global_shape, ", ")));
    }
    if (part.view.shape != part.box.sizes || part.view.dtype != dtype) {
      return Invalid(fmt::format("a shard's memory is {} [{}], its box is {} [{}]",
                                 schema::DTypeName(part.view.dtype),
                                 fmt::join(part.view.shape, ", "), schema::DTypeName(dtype),
                                 fmt::join(part.box.sizes, ", ")));
    }
    if (!IsEmpty(part.box.sizes)) pieces.push_back({part.box, part.view});
  }
  return pieces;
}

}  // namespace

Result<std::vector<LocalPiece>> PiecesOf(const Sharding& sharding, const TensorView& local,
                                         uint32_t rank) {
  if (sharding.mesh == nullptr) return PiecesOfParts(sharding, local.dtype);
  CAIRN_TRY_ASSIGN(const LocalShard shard,
                   ShardOf(sharding.global_shape, *sharding.mesh, sharding.placements, rank));
  if (const Shape sizes = shard.sizes(); local.shape != sizes) {
    return Invalid(fmt::format(
        "rank {}'s local tensor has shape [{}]; mesh and placements make it [{}] of a global [{}]",
        rank, fmt::join(local.shape, ", "), fmt::join(sizes, ", "),
        fmt::join(sharding.global_shape, ", ")));
  }
  if (!local.strides.empty() && local.strides.size() != local.shape.size()) {
    return Invalid("the local tensor has not one stride a dimension");
  }
  std::vector<LocalPiece> pieces;
  for (ShardPiece& piece : shard.Pieces()) {
    CAIRN_TRY_ASSIGN(TensorView view, Narrow(local, piece.local_offsets, piece.box.sizes));
    pieces.push_back({std::move(piece.box), std::move(view)});
  }
  return pieces;
}

}  // namespace cairn::core
