#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Maps from the elements of one tensor to those of another: what splits, concatenations, stacks,
/// permutations and reshapes of strided tensors have in common.

#include <cstdint>
#include <vector>

#include "core/tensor/tensor.h"

namespace cairn::core {

/// One direction in which a map proceeds: from one index of the axis to the next, the source index
/// grows by `source_step` in dimension `source_dim`, and the target index accordingly.
struct IndexAxis {
  uint64_t size = 0;
  size_t source_dim = 0;
  uint64_t source_step = 0;
  size_t target_dim = 0;
  uint64_t target_step = 0;
  friend bool operator==(const IndexAxis&, const IndexAxis&) = default;
};

/// Maps a part of the source tensor to a part of the target tensor, one to one. For all indices i
/// of the axes, the source element at source_offsets + sum(i * source step) belongs to the target
/// element at target_offsets + sum(i * target step). One dimension may have several axes.
///
/// A map from a tensor to itself has one axis per dimension, with steps of 1. All operations keep
/// maps affine, so that a load can copy each of them as a strided region, whatever led to it.
struct IndexMap {
  std::vector<uint64_t> source_offsets;  // one per dimension of the source
  std::vector<uint64_t> target_offsets;  // one per dimension of the target
  std::vector<IndexAxis> axes;           // of at least one index each
  friend bool operator==(const IndexMap&, const IndexMap&) = default;
};

/// Returns the map of a tensor of this shape, which has elements, to itself.
IndexMap IdentityMap(std::span<const uint64_t> shape);

/// Returns the number of elements that `map` maps.
uint64_t MappedCount(const IndexMap& map);

/// Return the smallest box that contains the mapped elements, in the source and in the target.
Box SourceBounds(const IndexMap& map);
Box TargetBounds(const IndexMap& map);

/// Return the parts of `map` whose source elements, or target elements, are in `box`; nothing if
/// there are none. One part, unless the box cuts through blocks that are apart in the other tensor.
std::vector<IndexMap> ClipSource(const IndexMap& map, const Box& box);
std::vector<IndexMap> ClipTarget(const IndexMap& map, const Box& box);

}  // namespace cairn::core
