#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Checks whether boxes tile a shape: whether every element is in exactly one of them.
///
/// A random number F(dimension, boundary), modulo the prime 2^61 - 1, is assigned to every index
/// boundary of every dimension. The weight of a box is the product of F(end) - F(begin) over its
/// dimensions. Weights are additive, so that the weights of boxes that tile the shape add up to the
/// weight of the shape. For boxes that do not, the difference is a non-zero polynomial in the
/// random numbers, which is zero with a probability of at most dimensions / 2^61 (Schwartz 1980,
/// Zippel 1979). Time is linear in the number of boxes, however they are arranged. If the weights
/// differ, a binary search for the region in which they differ finds an element that shows the
/// flaw.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core {

/// Many boxes with the same number of dimensions, in one contiguous array.
class BoxList {
 public:
  explicit BoxList(size_t dimensions) : dimensions_(dimensions) {}

  /// Requires one offset and one size per dimension.
  void Add(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes);
  void Add(const Box& box) { Add(box.offsets, box.sizes); }
  void Reserve(size_t boxes) { numbers_.reserve(boxes * 2 * dimensions_); }

  size_t dimensions() const { return dimensions_; }
  size_t size() const { return count_; }
  std::span<const uint64_t> offsets(size_t i) const {
    return {numbers_.data() + i * 2 * dimensions_, dimensions_};
  }
  std::span<const uint64_t> sizes(size_t i) const {
    return {numbers_.data() + i * 2 * dimensions_ + dimensions_, dimensions_};
  }

 private:
  size_t dimensions_;
  size_t count_ = 0;
  std::vector<uint64_t> numbers_;  // per box: offsets, then sizes
};

/// An element, or a box, that shows that a list of boxes is not a tiling.
struct TilingFlaw {
  enum class Kind {
    kOutside,  // boxes[0] is not inside the shape, or its end overflows
    kGap,      // no box contains `element`
    kOverlap,  // all of `boxes` contain `element`
  };
  Kind kind = Kind::kGap;
  std::vector<uint64_t> element;  // empty for kOutside
  std::vector<size_t> boxes;      // indices, ascending; at most kMaxNamed
  static constexpr size_t kMaxNamed = 16;
};

/// Whether boxes that are seen one by one tile a shape. Adjacent boxes, and boxes that are equal in
/// a dimension, take less time. Memory: a few numbers per dimension. Threads: one.
class TilingSum {
 public:
  /// Requires one offset and one size per dimension, and that the box is inside the shape.
  void Add(std::span<const uint64_t> offsets, std::span<const uint64_t> sizes);
  /// True if every element of `shape` was in exactly one box.
  bool IsTiling(std::span<const uint64_t> shape) const;

 private:
  /// The last box in one dimension.
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t end_weight = 0;
    uint64_t weight = 0;
  };

  uint64_t sum_ = 0;
  std::vector<Range> last_;  // by dimension
};

/// Returns nothing if every element of `shape` is in exactly one box, otherwise a flaw. Boxes
/// without elements are ignored. Requires that `boxes` have as many dimensions as `shape`. Time:
/// linear, about 0.03 s for a million boxes. Memory: one index per box if there is a flaw,
/// otherwise none. Threads: safe.
std::optional<TilingFlaw> FindTilingFlaw(std::span<const uint64_t> shape, const BoxList& boxes);

}  // namespace cairn::core
