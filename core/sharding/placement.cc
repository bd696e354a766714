// Cutting the indices of a dimension, and finding an index again.

#include "core/sharding/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cairn::core {
namespace {

std::unexpected<Error> Invalid(std::string message) {
  return Fail(ErrorCode::kInvalidArgument, std::move(message));
}

// Positions [begin, begin + length) of something that is cut.
struct Cut {
  uint64_t begin = 0;
  uint64_t length = 0;
};

// Piece `i` of `size` positions in `count` pieces.
Cut CutEvenly(uint64_t size, uint64_t count, uint64_t i) {
  const uint64_t full = size / count + (size % count != 0 ? 1 : 0);
  uint64_t begin = size;
  if (full != 0 && i <= size / full) begin = i * full;
  return {.begin = begin, .length = std::min(full, size - begin)};
}

// Pieces that are each cut, before the mesh dimension cuts them.
uint64_t SplitFactor(const Placement& placement) {
  return placement.kind == Placement::Kind::kStridedShard ? placement.split_factor : 1;
}

// The positions of piece `i` of `count`, one cut for each of the split factor's pieces.
template <typename Visit>
void ForEachCut(const Placement& placement, uint64_t size, uint64_t count, uint64_t i,
                const Visit& visit) {
  const uint64_t factor = SplitFactor(placement);
  // Beyond `size` pieces all are empty.
  for (uint64_t split = 0; split < std::min(factor, std::max<uint64_t>(size, 1)); ++split) {
    const Cut outer = CutEvenly(size, factor, split);
    const Cut inner = CutEvenly(outer.length, count, i);
    visit(Cut{.begin = outer.begin + inner.begin, .length = inner.length});
  }
}

uint64_t TotalLength(std::span<const IndexRun> runs) {
  uint64_t total = 0;
  for (const IndexRun& run : runs) total += run.length;
  return total;
}

// What of `runs` stands at the positions of `cut`, appended to `kept`.
void AppendCut(std::span<const IndexRun> runs, const Cut& cut, std::vector<IndexRun>& kept) {
  uint64_t position = 0;  // of the run's first index
  for (const IndexRun& run : runs) {
    const uint64_t begin = std::max(cut.begin, position);
    const uint64_t end = std::min(cut.begin + cut.length, position + run.length);
    if (begin < end) {
      const IndexRun part{.begin = run.begin + (begin - position), .length = end - begin};
      if (!kept.empty() && kept.back().begin + kept.back().length == part.begin) {
        kept.back().length += part.length;
      } else {
        kept.push_back(part);
      }
    }
    position += run.length;
  }
}

Result<void> CheckPlacements(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                             std::span<const Placement> placements) {
  if (placements.size() != mesh.dims().size()) {
    return Invalid(fmt::format("{} placements for a mesh of {} dimensions", placements.size(),
                               mesh.dims().size()));
  }
  for (const Placement& placement : placements) {
    if (placement.kind == Placement::Kind::kReplicate) continue;
    if (placement.dim >= shape.size()) {
      return Invalid(fmt::format("a placement cuts dimension {} of a tensor of {} dimensions",
                                 placement.dim, shape.size()));
    }
    if (placement.kind == Placement::Kind::kStridedShard && placement.split_factor == 0) {
      return Invalid("a strided shard has split factor 0");
    }
  }
  return {};
}

}  // namespace

Shape LocalShard::sizes() const {
  Shape sizes;
  for (const auto& of_dim : runs) sizes.push_back(TotalLength(of_dim));
  return sizes;
}

std::vector<uint64_t> LocalShard::offsets(std::span<const uint64_t> shape) const {
  std::vector<uint64_t> offsets;
  for (size_t d = 0; d < runs.size(); ++d) {
    offsets.push_back(runs[d].empty() ? shape[d] : runs[d].front().begin);
  }
  return offsets;
}

std::vector<ShardPiece> LocalShard::Pieces() const {
  std::vector<ShardPiece> pieces;
  if (std::ranges::any_of(runs, [](const auto& of_dim) { return of_dim.empty(); })) return pieces;
  // Counts through one run a dimension, the last dimension fastest.
  std::vector<size_t> chosen(runs.size());
  std::vector<uint64_t> local(runs.size());
  while (true) {
    ShardPiece piece{.box = {}, .local_offsets = local};
    for (size_t d = 0; d < runs.size(); ++d) {
      piece.box.offsets.push_back(runs[d][chosen[d]].begin);
      piece.box.sizes.push_back(runs[d][chosen[d]].length);
    }
    pieces.push_back(std::move(piece));
    size_t d = runs.size();
    while (d > 0) {
      local[d - 1] += runs[d - 1][chosen[d - 1]].length;
      if (++chosen[d - 1] < runs[d - 1].size()) break;
      --d;
      chosen[d] = 0;
      local[d] = 0;
    }
    if (d == 0) return pieces;
  }
}

Result<LocalShard> ShardOf(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                           std::span<const Placement> placements, uint32_t rank) {
  CAIRN_TRY(CheckPlacements(shape, mesh, placements));
  const auto coordinate = mesh.CoordinateOf(rank);
  if (!coordinate) return Invalid(fmt::format("rank {} is not of the mesh", rank));
  LocalShard shard;
  for (const uint64_t size : shape) {
    shard.runs.emplace_back();
    if (size > 0) shard.runs.back().push_back({.begin = 0, .length = size});
  }
  for (size_t m = 0; m < placements.size(); ++m) {
    if (placements[m].kind == Placement::Kind::kReplicate) continue;
    std::vector<IndexRun>& runs = shard.runs[placements[m].dim];
    std::vector<IndexRun> kept;
    ForEachCut(placements[m], TotalLength(runs), mesh.dims()[m].size, (*coordinate)[m],
               [&](const Cut& cut) { AppendCut(runs, cut, kept); });
    runs = std::move(kept);
  }
  return shard;
}

Result<Box> LocalBox(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                     std::span<const Placement> placements, uint32_t rank) {
  CAIRN_TRY_ASSIGN(const LocalShard shard, ShardOf(shape, mesh, placements, rank));
  return Box{.offsets = shard.offsets(shape), .sizes = shard.sizes()};
}

Result<ElementHolders> HoldersOf(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                                 std::span<const Placement> placements,
                                 std::span<const uint64_t> index) {
  CAIRN_TRY(CheckPlacements(shape, mesh, placements));
  bool inside = index.size() == shape.size();
  for (size_t d = 0; inside && d < shape.size(); ++d) inside = index[d] < shape[d];
  if (!inside) {
    return Invalid(fmt::format("element [{}] is not in a tensor of shape [{}]",
                               fmt::join(index, ", "), fmt::join(shape, ", ")));
  }
  ElementHolders holders{.ranks = {}, .local_index = {index.begin(), index.end()}};
  std::vector<uint64_t> sizes(shape.begin(), shape.end());  // of what the cuts so far left
  std::vector<uint32_t> coordinate(placements.size());
  std::vector<size_t> replicated;
  for (size_t m = 0; m < placements.size(); ++m) {
    const Placement& placement = placements[m];
    if (placement.kind == Placement::Kind::kReplicate) {
      replicated.push_back(m);
      continue;
    }
    uint64_t& position = holders.local_index[placement.dim];
    uint64_t& size = sizes[placement.dim];
    const uint64_t count = mesh.dims()[m].size;
    const uint64_t factor = SplitFactor(placement);
    // The piece of the split factor that holds it, then the one of those of the mesh dimension.
    const uint64_t split = position / CutEvenly(size, factor, 0).length;
    const Cut outer = CutEvenly(size, factor, split);
    const uint64_t piece = (position - outer.begin) / CutEvenly(outer.length, count, 0).length;
    coordinate[m] = static_cast<uint32_t>(piece);
    uint64_t before = 0;  // elements of the rank's earlier cuts, and of this one up to ours
    uint64_t held = 0;
    ForEachCut(placement, size, count, piece, [&](const Cut& cut) {
      if (cut.begin <= position) before += std::min(cut.length, position - cut.begin);
      held += cut.length;
    });
    position = before;
    size = held;
  }
  holders.ranks = mesh.GroupOf(mesh.RankAt(coordinate), replicated);
  return holders;
}

}  // namespace cairn::core
