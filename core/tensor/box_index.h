#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Finds the boxes of a list that overlap a given box, without visiting all of them.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor/tiling.h"

namespace cairn::core {

/// An immutable tree of bounding boxes. Each node is split at the median of the dimension in which
/// the offsets of its boxes vary most (a k-d tree after Bentley, 1975), and stores the bounds of
/// its boxes, as in an R-tree. Memory: 16 bytes per box, and about 6 bytes per box and dimension.
/// Time: O(n log n) to build; a query visits the nodes whose bounds overlap the box. Threads: safe.
class BoxIndex {
 public:
  explicit BoxIndex(BoxList boxes);

  const BoxList& boxes() const { return boxes_; }

  /// Calls `visit(i)` for each box that has an element in common with the given one, in no
  /// particular order. Requires the same number of dimensions as the boxes have.
  void ForEachOverlap(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes,
                      const std::function<void(size_t)>& visit) const;

 private:
  static constexpr size_t kLeafBoxes = 8;
  struct Range {
    size_t begin = 0;  // indices of order_
    size_t end = 0;
  };

  void Build(size_t node, Range range);
  void SetBounds(size_t node, Range range);
  size_t WidestDim(Range range) const;
  bool Overlaps(const uint64_t* bounds, std::span<const uint64_t> offsets,
                std::span<const uint64_t> sizes) const;

  BoxList boxes_;
  std::vector<size_t> order_;     // boxes; each node's are consecutive
  std::vector<uint64_t> bounds_;  // per node: begins, then ends; children of n: 2n+1, 2n+2
};

}  // namespace cairn::core
