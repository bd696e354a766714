#pragma once
// SPDX-License-Identifier: Apache-2.0
/// How a tensor is placed on a mesh: the placements of PyTorch's DTensor, element by element.
///
/// A tensor has one placement per mesh dimension. They are applied from the first dimension to the
/// last; each divides what the ones before left. A dimension divided among n ranks gives ceil(size
/// / n) indices to each, so that the last ranks may have fewer or none, as torch.chunk does.
/// Several placements may divide the same tensor dimension.
///
/// Source: torch.distributed.tensor (2.13), `compute_local_shape_and_global_offset` and the
/// placement types. Partial placements do not occur in checkpoints and cannot be expressed.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor/mesh.h"
#include "core/tensor/tensor.h"

namespace cairn::core {

struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kStridedShard };

  Kind kind = Kind::kReplicate;
  uint32_t dim = 0;  // the tensor dimension that is divided
  // kStridedShard: the number of parts, each of which is divided among the ranks, as if a mesh
  // dimension further right had divided the dimension first (FSDP over TP).
  uint32_t split_factor = 1;

  static Placement Replicate() { return {}; }
  static Placement Shard(uint32_t dim) { return {.kind = Kind::kShard, .dim = dim}; }
  static Placement StridedShard(uint32_t dim, uint32_t split_factor) {
    return {.kind = Kind::kStridedShard, .dim = dim, .split_factor = split_factor};
  }
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Consecutive indices of one tensor dimension.
struct IndexRange {
  uint64_t begin = 0;   // in the global tensor
  uint64_t length = 0;  // at least 1
  friend bool operator==(const IndexRange&, const IndexRange&) = default;
};

/// A box of the global tensor that one rank holds, and its offsets in that rank's local tensor.
struct ShardBox {
  Box box;
  std::vector<uint64_t> local_offsets;
};

/// The part of a tensor that one rank holds. In each dimension, the local tensor consists of the
/// indices of the global one that are in `ranges`.
struct LocalShard {
  std::vector<std::vector<IndexRange>> ranges;  // per dimension: ascending, not adjacent

  /// Sizes of the local tensor.
  Shape sizes() const;
  /// The boxes that the local tensor consists of, in its row-major order; none if it is empty, and
  /// several only if a strided shard leaves gaps.
  std::vector<ShardBox> Boxes() const;
};

/// Returns what `rank` holds of a tensor. kInvalidArgument: there is not one placement per mesh
/// dimension, a placement divides a dimension that the tensor does not have, a split factor is 0,
/// or the mesh does not contain the rank.
Result<LocalShard> ShardOf(std::span<const uint64_t> shape, const DeviceMesh& mesh,
                           std::span<const Placement> placements, uint32_t rank);

/// A box of the global tensor, and the local memory that holds it.
struct ShardView {
  Box box;
  TensorView view;  // its shape is box.sizes
};

/// How one tensor of a state dict is sharded.
struct Sharding {
  Shape global_shape;

  /// A DTensor: the leaf's view is the local tensor that ShardOf computes.
  std::shared_ptr<const DeviceMesh> mesh;  // shared by the tensors on it; null for explicit boxes
  std::vector<Placement> placements;       // one per mesh dimension

  /// A ShardedTensor: the boxes that this rank holds and no other rank does. Only the dtype of the
  /// leaf's own view is used; it has no memory.
  std::vector<ShardView> parts;
};

/// Returns what `rank` holds, without boxes that have no elements; `local` is the leaf's view.
/// kInvalidArgument: `local` does not have the shape that the mesh and placements imply or one
/// stride per dimension; the view of a part does not have the shape of its box or the dtype of
/// `local`; a box is not inside the global shape; or ShardOf rejects the placements or the rank.
Result<std::vector<ShardView>> ShardViewsOf(const Sharding& sharding, const TensorView& local,
                                            uint32_t rank);

}  // namespace cairn::core
