#pragma once
/// Do boxes tile a shape: is every element in exactly one of them?
///
/// Every index boundary of every dimension gets a random number F(dimension, boundary), modulo the
/// prime 2^61 - 1; a box weighs the product of F(end) - F(begin) over its dimensions. Weights add
/// up, so boxes that tile the shape weigh together what the shape weighs. Boxes that do not weigh
/// the same by accident only: the difference is a polynomial of the random numbers that is not
/// zero, so that it vanishes with a probability of at most dimensions / 2^61 (Schwartz 1980, Zippel
/// 1979). Time is linear in the number of boxes, whatever their arrangement. Where the weights
/// differ, halving the region that is looked at leads to an element that is to blame.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core {

/// Many boxes of the same number of dimensions, in one piece of memory.
class BoxList {
 public:
  explicit BoxList(size_t dimensions) : dimensions_(dimensions) {}

  /// Requires one number a dimension in both.
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
  std::vector<uint64_t> numbers_;  // offsets and sizes of each box
};

/// An element, or a box, that shows that a list of boxes is no tiling.
struct TilingFlaw {
  enum class Kind {
    kOutside,  // boxes[0] leaves the shape, or its end the numbers
    kGap,      // no box holds `element`
    kOverlap,  // all of `boxes` hold `element`
  };
  Kind kind = Kind::kGap;
  std::vector<uint64_t> element;  // empty for kOutside
  std::vector<size_t> boxes;      // indices, ascending; of an overlap at most kMaxNamed
  static constexpr size_t kMaxNamed = 16;
};

/// Nothing if every element of `shape` is in exactly one box. Boxes without elements are passed
/// over. Requires as many dimensions in `boxes` as in `shape`. Time: linear, some 0.03 s for a
/// million boxes; memory: an index a box when there is a flaw, else none. Threads: pure.
std::optional<TilingFlaw> FindTilingFlaw(std::span<const uint64_t> shape, const BoxList& boxes);

}  // namespace cairn::core
