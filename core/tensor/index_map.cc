// Clips maps one dimension after the other, by the outermost axis of the dimension first.

#include "core/tensor/index_map.h"

#include <algorithm>
#include <ranges>

namespace cairn::core {
namespace {

// One of the two tensors of a map.
struct Side {
  std::vector<uint64_t> IndexMap::* offsets;
  size_t IndexAxis::* dim;
  uint64_t IndexAxis::* step;
};
constexpr Side kSource{&IndexMap::source_offsets, &IndexAxis::source_dim, &IndexAxis::source_step};
constexpr Side kTarget{&IndexMap::target_offsets, &IndexAxis::target_dim, &IndexAxis::target_step};

Box Bounds(const IndexMap& map, const Side& side) {
  Box box{.offsets = map.*side.offsets, .sizes = Shape((map.*side.offsets).size(), 1)};
  for (const IndexAxis& axis : map.axes) {
    box.sizes[axis.*side.dim] += (axis.size - 1) * axis.*side.step;
  }
  return box;
}

// Restricts an axis to the indices [begin, end). An axis with one index is removed.
void Restrict(IndexMap& map, size_t axis, uint64_t begin, uint64_t end) {
  IndexAxis& kept = map.axes[axis];
  map.source_offsets[kept.source_dim] += begin * kept.source_step;
  map.target_offsets[kept.target_dim] += begin * kept.target_step;
  kept.size = end - begin;
  if (kept.size == 1) map.axes.erase(map.axes.begin() + static_cast<ptrdiff_t>(axis));
}

class Clip {
 public:
  Clip(const Side& side, size_t dim, uint64_t begin, uint64_t end)
      : side_(side), dim_(dim), begin_(begin), end_(end) {}

  // Appends the parts of `map` in [begin, end) of the dimension.
  void Run(const IndexMap& map, std::vector<IndexMap>& parts) const {
    const uint64_t first = (map.*side_.offsets)[dim_];
    uint64_t inner = 1;  // from the first to the last element of all axes but the outermost
    size_t outermost = map.axes.size();
    for (size_t a = 0; a < map.axes.size(); ++a) {
      if (map.axes[a].*side_.dim != dim_) continue;
      if (outermost == map.axes.size() ||
          map.axes[a].*side_.step > map.axes[outermost].*side_.step) {
        outermost = a;
      }
    }
    for (size_t a = 0; a < map.axes.size(); ++a) {
      if (a != outermost && map.axes[a].*side_.dim == dim_) {
        inner += (map.axes[a].size - 1) * map.axes[a].*side_.step;
      }
    }
    if (outermost == map.axes.size()) {
      if (first >= begin_ && first < end_) parts.push_back(map);
      return;
    }
    ClipAxis(map, outermost, first, inner, parts);
  }

 private:
  void ClipAxis(const IndexMap& map, size_t axis, uint64_t first, uint64_t inner,
                std::vector<IndexMap>& parts) const {
    const uint64_t size = map.axes[axis].size;
    const uint64_t step = map.axes[axis].*side_.step;
    // Block i covers [first + i * step, first + i * step + inner).
    const auto begin_of = [&](uint64_t i) { return first + i * step; };
    const uint64_t touched_begin =
        begin_ < first + inner ? 0 : std::min(size, (begin_ - first - inner) / step + 1);
    const uint64_t touched_end = end_ <= first ? 0 : std::min(size, (end_ - first - 1) / step + 1);
    uint64_t inside_begin = touched_begin;
    while (inside_begin < touched_end && begin_of(inside_begin) < begin_) ++inside_begin;
    uint64_t inside_end = std::max(touched_end, inside_begin);
    while (inside_end > inside_begin && begin_of(inside_end - 1) + inner > end_) --inside_end;
    const auto cut = [&](uint64_t i) {
      IndexMap block = map;
      Restrict(block, axis, i, i + 1);
      Run(block, parts);
    };
    for (uint64_t i = touched_begin; i < inside_begin; ++i) cut(i);
    if (inside_begin < inside_end) {
      parts.push_back(map);
      Restrict(parts.back(), axis, inside_begin, inside_end);
    }
    for (uint64_t i = std::max(inside_end, inside_begin); i < touched_end; ++i) cut(i);
  }

  const Side& side_;
  const size_t dim_;
  const uint64_t begin_;
  const uint64_t end_;
};

std::vector<IndexMap> ClipTo(const IndexMap& map, const Box& box, const Side& side) {
  std::vector<IndexMap> parts{map};
  for (size_t d = 0; d < box.offsets.size(); ++d) {
    const uint64_t begin = box.offsets[d];
    const uint64_t end = begin + box.sizes[d];
    std::vector<IndexMap> clipped;
    for (IndexMap& part : parts) {
      const Box bounds = Bounds(part, side);
      if (bounds.offsets[d] >= begin && bounds.offsets[d] + bounds.sizes[d] <= end) {
        clipped.push_back(std::move(part));
      } else {
        Clip(side, d, begin, end).Run(part, clipped);
      }
    }
    parts = std::move(clipped);
  }
  return parts;
}

}  // namespace

IndexMap IdentityMap(std::span<const uint64_t> shape) {
  IndexMap map{.source_offsets = std::vector<uint64_t>(shape.size()),
               .target_offsets = std::vector<uint64_t>(shape.size()),
               .axes = {}};
  for (size_t d = 0; d < shape.size(); ++d) {
    CAIRN_CHECK(shape[d] > 0);
    if (shape[d] > 1) map.axes.push_back({shape[d], d, 1, d, 1});
  }
  return map;
}

uint64_t MappedCount(const IndexMap& map) {
  uint64_t count = 1;
  for (const IndexAxis& axis : map.axes) count *= axis.size;
  return count;
}

Box SourceBounds(const IndexMap& map) { return Bounds(map, kSource); }
Box TargetBounds(const IndexMap& map) { return Bounds(map, kTarget); }

std::vector<IndexMap> ClipSource(const IndexMap& map, const Box& box) {
  return ClipTo(map, box, kSource);
}
std::vector<IndexMap> ClipTarget(const IndexMap& map, const Box& box) {
  return ClipTo(map, box, kTarget);
}

}  // namespace cairn::core
