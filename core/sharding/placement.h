#pragma once
/// How a tensor lies on a mesh: PyTorch's DTensor placements, to the element.
///
/// One placement a mesh dimension, applied from the first to the last: each cuts what the ones
/// before left. A cut into n gives ceil(size / n) to each, so that the last pieces may be short or
/// empty, as torch.chunk does it. Several may cut the same tensor dimension.
///
/// Source: torch.distributed.tensor (2.13), `compute_local_shape_and_global_offset` and the
/// placement types. Partial placements have no place in a checkpoint and cannot be said.

#include <cstdint>
#include <span>
#include <vector>

#include "core/sharding/mesh.h"
#include "core/tensor/tensor.h"

namespace cairn::core {

struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard };

  Kind kind = Kind::kReplicate;
  uint32_t dim = 0;           // of the tensor, that is cut
  uint32_t split_factor = 1;  // kStridedShard: pieces that are each cut, as if by a mesh dimension
                              // further right (FSDP over TP)

  static Placement Replicate() { return {}; }
  static Placement Shard(uint32_t dim) { return {.kind = Kind::kShard, .dim = dim}; }
  static Placement StridedShard(uint32_t dim, uint32_t split_factor) {
    return {.kind = Kind::kStridedShard, .dim = dim, .split_factor = split_factor};
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Consecutive indices of one tensor dimension.
struct IndexRun {
  uint64_t begin = 0;   // in the global tensor
  uint64_t length = 0;  // at least 1
  friend bool operator==(const IndexRun&, const IndexRun&) = default;
};

/// A box of the global tensor, and where it lies in the local one.
struct ShardPiece {
  Box box;
  std::vector<uint64_t> local_offsets;
};

/// What one rank holds of a tensor. Its local tensor is the global one with, in each dimension, the
/// indices of `runs` only.
struct LocalShard {
  std::vector<std::vector<IndexRun>> runs;  // a dimension: ascending, apart from each other

  /// Elements of the local tensor in each dimension.
  Shape sizes() const;
  /// Of its first element; in a dimension of which nothing is left, that dimension's global size.
  std::vector<uint64_t> offsets(std::span<const uint64_t> shape) const;
  /// The boxes that it is made of, in row-major order of the local tensor; none if it is empty. One
  /// unless a strided shard leaves gaps.
  std::vector<ShardPiece> Pieces() const;
};

/// kInvalidArgument: not one placement a mesh dimension; a dimension that the tensor lacks; a split
/// factor of 0; or a rank that is not of the mesh.
Result<LocalShard> ShardOf(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                           std::span<const Placement> placements, uint32_t rank);

/// Sizes of the local tensor and the offsets of its first element. Where a strided shard leaves
/// gaps, this is no box of the global tensor: ShardOf tells its pieces. Errors as ShardOf.
Result<Box> LocalBox(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                     std::span<const Placement> placements, uint32_t rank);

/// Who holds an element, and where in their local tensors.
struct ElementHolders {
  std::vector<uint32_t> ranks;  // in the order of their places: replicas of each other
  std::vector<uint64_t> local_index;
};

/// The inverse of ShardOf. kInvalidArgument: as ShardOf, or `index` is not in `shape`.
Result<ElementHolders> HoldersOf(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                                 std::span<const Placement> placements,
                                 std::span<const uint64_t> index);

}  // namespace cairn::core
