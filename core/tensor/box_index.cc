#include "core/tensor/box_index.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace cairn::core {

BoxIndex::BoxIndex(BoxList boxes) : boxes_(std::move(boxes)) {
  for (size_t i = 0; i < boxes_.size(); ++i) {
    if (!HasNoElements(boxes_.sizes(i))) order_.push_back(i);
  }
  if (order_.empty()) return;
  // Halving until at most kLeafBoxes remain creates at most this many leaves, rounded up to a full
  // tree.
  const size_t leaves = std::bit_ceil((order_.size() + kLeafBoxes - 1) / kLeafBoxes);
  bounds_.resize((4 * leaves - 1) * 2 * boxes_.dimensions());
  Build(0, {0, order_.size()});
}

void BoxIndex::SetBounds(size_t node, Range range) {
  const size_t dims = boxes_.dimensions();
  uint64_t* const bounds = bounds_.data() + node * 2 * dims;
  std::fill_n(bounds, dims, std::numeric_limits<uint64_t>::max());
  std::fill_n(bounds + dims, dims, uint64_t{0});
  for (size_t i = range.begin; i < range.end; ++i) {
    const auto offsets = boxes_.offsets(order_[i]);
    const auto sizes = boxes_.sizes(order_[i]);
    for (size_t d = 0; d < dims; ++d) {
      bounds[d] = std::min(bounds[d], offsets[d]);
      bounds[dims + d] = std::max(bounds[dims + d], offsets[d] + sizes[d]);
    }
  }
}

size_t BoxIndex::WidestDim(Range range) const {
  size_t widest = 0;
  uint64_t width = 0;
  for (size_t d = 0; d < boxes_.dimensions(); ++d) {
    uint64_t low = std::numeric_limits<uint64_t>::max();
    uint64_t high = 0;
    for (size_t i = range.begin; i < range.end; ++i) {
      low = std::min(low, boxes_.offsets(order_[i])[d]);
      high = std::max(high, boxes_.offsets(order_[i])[d]);
    }
    if (high - low > width) {
      width = high - low;
      widest = d;
    }
  }
  return widest;
}

void BoxIndex::Build(size_t node, Range range) {
  SetBounds(node, range);
  if (range.end - range.begin <= kLeafBoxes || boxes_.dimensions() == 0) return;
  const size_t dim = WidestDim(range);
  const size_t middle = range.begin + (range.end - range.begin) / 2;
  const auto at = [this](size_t i) { return order_.begin() + static_cast<ptrdiff_t>(i); };
  std::nth_element(at(range.begin), at(middle), at(range.end), [&](size_t a, size_t b) {
    return boxes_.offsets(a)[dim] < boxes_.offsets(b)[dim];
  });
  Build(2 * node + 1, {range.begin, middle});
  Build(2 * node + 2, {middle, range.end});
}

bool BoxIndex::Overlaps(const uint64_t* bounds, std::span<const uint64_t> offsets,
                        std::span<const uint64_t> sizes) const {
  const size_t dims = boxes_.dimensions();
  for (size_t d = 0; d < dims; ++d) {
    if (bounds[d] >= offsets[d] + sizes[d] || bounds[dims + d] <= offsets[d]) return false;
  }
  return true;
}

void BoxIndex::ForEachOverlap(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes,
                              const std::function<void(size_t)>& visit) const {
  CAIRN_CHECK(offsets.size() == boxes_.dimensions() && sizes.size() == boxes_.dimensions());
  if (order_.empty() || HasNoElements(sizes)) return;
  struct Step {
    size_t node;
    Range range;
  };
  std::vector<Step> open = {{0, {0, order_.size()}}};
  std::vector<uint64_t> bounds(2 * boxes_.dimensions());
  while (!open.empty()) {
    const auto [node, range] = open.back();
    open.pop_back();
    if (!Overlaps(bounds_.data() + node * 2 * boxes_.dimensions(), offsets, sizes)) continue;
    if (range.end - range.begin > kLeafBoxes && boxes_.dimensions() > 0) {
      const size_t middle = range.begin + (range.end - range.begin) / 2;
      open.push_back({2 * node + 1, {range.begin, middle}});
      open.push_back({2 * node + 2, {middle, range.end}});
      continue;
    }
    for (size_t i = range.begin; i < range.end; ++i) {
      for (size_t d = 0; d < boxes_.dimensions(); ++d) {
        bounds[d] = boxes_.offsets(order_[i])[d];
        bounds[boxes_.dimensions() + d] = bounds[d] + boxes_.sizes(order_[i])[d];
      }
      if (Overlaps(bounds.data(), offsets, sizes)) visit(order_[i]);
    }
  }
}

}  // namespace cairn::core
