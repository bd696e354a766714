#pragma once
/// Finds the boxes of a list that overlap a given one, without looking at all of them.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/tensor/tiling.h"

namespace cairn::core {

/// A tree of bounding boxes, packed once: halves are cut at the median of the dimension in which
/// the boxes' beginnings spread most (a k-d tree after Bentley, 1975, kept with the bounds of its
/// nodes as R-trees do). Memory: 16 bytes a box and some 6 a box and dimension. Time: n log n to
/// make; a query visits the nodes that the box overlaps. Threads: immutable once made.
class BoxIndex {
 public:
  explicit BoxIndex(BoxList boxes);

  const BoxList& boxes() const { return boxes_; }

  /// Calls `visit(i)` for each box that has an element in common with the given one, in no
  /// particular order. Requires as many dimensions as the boxes have.
  void ForEachOverlap(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes,
                      const std::function<void(size_t)>& visit) const;

 private:
  static constexpr size_t kLeafBoxes = 8;
  struct Range {
    size_t begin = 0;  // in order_
    size_t end = 0;
  };

  void Build(size_t node, Range range);
  void SetBounds(size_t node, Range range);
  size_t WidestDim(Range range) const;
  bool Overlaps(const uint64_t* bounds, std::span<const uint64_t> offsets,
                std::span<const uint64_t> sizes) const;

  BoxList boxes_;
  std::vector<size_t> order_;     // boxes; those of a node stand together
  std::vector<uint64_t> bounds_;  // of each node: beginnings, then ends; children of n: 2n+1, 2n+2
};

}  // namespace cairn::core
