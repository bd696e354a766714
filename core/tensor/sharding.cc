#include "core/tensor/sharding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cairn::core {
namespace {

std::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message));
}

// Positions [begin, begin + length) of the divided range.
struct Cut {
  uint64_t begin = 0;
  uint64_t length = 0;
};

// Part `i` of `size` positions that are divided into `count` parts.
Cut CutEvenly(uint64_t size, uint64_t count, uint64_t i) {
  const uint64_t full = size / count + (size % count != 0 ? 1 : 0);
  uint64_t begin = size;
  if (full != 0 && i <= size / full) begin = i * full;
  return {.begin = begin, .length = std::min(full, size - begin)};
}

// Number of parts, each of which the mesh dimension divides.
uint64_t SplitFactor(const Placement& placement) {
  return placement.kind == Placement::Kind::kStridedShard ? placement.split_factor : 1;
}

// Calls `visit` with the positions of rank `i` of `count` in each part.
template <typename Visit>
void ForEachCut(const Placement& placement, uint64_t size, uint64_t count, uint64_t i,
                const Visit& visit) {
  const uint64_t factor = SplitFactor(placement);
  // All parts after the first `size` are empty.
  for (uint64_t split = 0; split < std::min(factor, std::max<uint64_t>(size, 1)); ++split) {
    const Cut outer = CutEvenly(size, factor, split);
    const Cut inner = CutEvenly(outer.length, count, i);
    visit(Cut{.begin = outer.begin + inner.begin, .length = inner.length});
  }
}

uint64_t TotalLength(std::span<const IndexRange> ranges) {
  uint64_t total = 0;
  for (const IndexRange& range : ranges) total += range.length;
  return total;
}

// Appends the indices of `ranges` that are at the positions of `cut` to `kept`.
void AppendCut(std::span<const IndexRange> ranges, const Cut& cut, std::vector<IndexRange>& kept) {
  uint64_t position = 0;  // position of the first index of the range
  for (const IndexRange& range : ranges) {
    const uint64_t begin = std::max(cut.begin, position);
    const uint64_t end = std::min(cut.begin + cut.length, position + range.length);
    if (begin < end) {
      const IndexRange added{.begin = range.begin + (begin - position), .length = end - begin};
      if (!kept.empty() && kept.back().begin + kept.back().length == added.begin) {
        kept.back().length += added.length;
      } else {
        kept.push_back(added);
      }
    }
    position += range.length;
  }
}

Result<void> CheckPlacements(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                             std::span<const Placement> placements) {
  if (placements.size() != mesh.dims().size()) {
    return Invalid(
        fmt::format("{} placements for a mesh of {} dimensions; give one for each dimension",
                    placements.size(), mesh.dims().size()));
  }
  for (const Placement& placement : placements) {
    if (placement.kind == Placement::Kind::kReplicate) continue;
    if (placement.dim >= shape.size()) {
      return Invalid(
          fmt::format("a placement divides dimension {} of a tensor of {} dimensions, which are "
                      "numbered from 0",
                      placement.dim, shape.size()));
    }
    if (placement.kind == Placement::Kind::kStridedShard && placement.split_factor == 0) {
      return Invalid("a strided shard has split factor 0; give at least 1");
    }
  }
  return {};
}

}  // namespace

Shape LocalShard::sizes() const {
  Shape sizes;
  for (const auto& of_dim : ranges) sizes.push_back(TotalLength(of_dim));
  return sizes;
}

std::vector<ShardBox> LocalShard::Boxes() const {
  std::vector<ShardBox> boxes;
  if (std::ranges::any_of(ranges, [](const auto& of_dim) { return of_dim.empty(); })) return boxes;
  // Enumerates combinations of one range per dimension, the last dimension fastest.
  std::vector<size_t> chosen(ranges.size());
  std::vector<uint64_t> local(ranges.size());
  while (true) {
    ShardBox shard_box{.box = {}, .local_offsets = local};
    for (size_t d = 0; d < ranges.size(); ++d) {
      shard_box.box.offsets.push_back(ranges[d][chosen[d]].begin);
      shard_box.box.sizes.push_back(ranges[d][chosen[d]].length);
    }
    boxes.push_back(std::move(shard_box));
    size_t d = ranges.size();
    while (d > 0) {
      local[d - 1] += ranges[d - 1][chosen[d - 1]].length;
      if (++chosen[d - 1] < ranges[d - 1].size()) break;
      --d;
      chosen[d] = 0;
      local[d] = 0;
    }
    if (d == 0) return boxes;
  }
}

Result<LocalShard> ShardOf(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                           std::span<const Placement> placements, uint32_t rank) {
  CAIRN_TRY(CheckPlacements(shape, mesh, placements));
  const auto coordinate = mesh.CoordinateOf(rank);
  if (!coordinate)
    return Invalid(
        fmt::format("the mesh does not contain rank {}; leave the tensor out on this rank", rank));
  LocalShard shard;
  for (const uint64_t size : shape) {
    shard.ranges.emplace_back();
    if (size > 0) shard.ranges.back().push_back({.begin = 0, .length = size});
  }
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].kind == Placement::Kind::kReplicate) continue;
    std::vector<IndexRange>& ranges = shard.ranges[placements[m].dim];
    std::vector<IndexRange> kept;
    ForEachCut(placements[m], TotalLength(ranges), mesh.dims()[m].size, (*coordinate)[m],
               [&](const Cut& cut) { AppendCut(ranges, cut, kept); });
    ranges = std::move(kept);
  }
  return shard;
}

namespace {

Result<std::vector<ShardView>> ShardViewsOfParts(const Sharding& sharding, DType dtype) {
  std::vector<ShardView> views;
  for (const ShardView& part : sharding.parts) {
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
    if (!HasNoElements(part.box.sizes)) views.push_back(part);
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
