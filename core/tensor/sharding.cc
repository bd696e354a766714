// Computes which boxes of global tensors the memory of local ones holds.

#include "core/tensor/sharding.h"

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

Result<std::vector<ShardView>> ShardViewsOfParts(const Sharding& sharding, DType dtype) {
  std::vector<ShardView> views;
  for (const Sharding::Part& part : sharding.parts) {
    if (!BoxFits(part.box, sharding.global_shape)) {
      return Invalid(
          fmt::format("a shard at [{}] of sizes [{}] is not inside the global shape [{}]",
                      fmt::join(part.box.offsets, ", "), fmt::join(part.box.sizes, ", "),
                      fmt::join(sharding.global_shape, ", ")));
    }
    if (part.view.shape != part.box.sizes || part.view.dtype != dtype) {
      return Invalid(fmt::format("a shard's memory is {} [{}], its box is {} [{}]",
                                 schema::DTypeName(part.view.dtype),
                                 fmt::join(part.view.shape, ", "), schema::DTypeName(dtype),
                                 fmt::join(part.box.sizes, ", ")));
    }
    if (!IsEmpty(part.box.sizes)) views.push_back({part.box, part.view});
  }
  return views;
}

}  // namespace

Result<std::vector<ShardView>> ShardViewsOf(const Sharding& sharding, const TensorView& local,
                                            uint32_t rank) {
  if (sharding.mesh == nullptr) return ShardViewsOfParts(sharding, local.dtype);
  CAIRN_TRY_ASSIGN(const LocalShard shard,
                   ShardOf(sharding.global_shape, *sharding.mesh, sharding.placements, rank));
  if (const Shape sizes = shard.sizes(); local.shape != sizes) {
    return Invalid(
        fmt::format("rank {}'s local tensor has shape [{}]; mesh and placements imply [{}] of a "
                    "global [{}]; pass the part that this rank holds",
                    rank, fmt::join(local.shape, ", "), fmt::join(sizes, ", "),
                    fmt::join(sharding.global_shape, ", ")));
  }
  if (const auto checked = CheckStrides(local.shape, local.strides); !checked) {
    return Invalid("the local tensor has " + checked.error().message);
  }
  std::vector<ShardView> views;
  for (ShardBox& shard_box : shard.Boxes()) {
    Box in_local{.offsets = std::move(shard_box.local_offsets), .sizes = shard_box.box.sizes};
    views.push_back({std::move(shard_box.box), Narrow(local, in_local)});
  }
  return views;
}

}  // namespace cairn::core
