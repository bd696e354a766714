#pragma once
// SPDX-License-Identifier: Apache-2.0
/// The part of a global tensor in the memory of one rank: the mesh and placements of a DTensor, or
/// the explicit boxes of a ShardedTensor.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/tensor/mesh.h"
#include "core/tensor/placement.h"
#include "core/tensor/tensor.h"

namespace cairn::core {

/// How one tensor of a state dict is sharded.
struct Sharding {
  Shape global_shape;

  /// A DTensor: the leaf's view is the local tensor that ShardOf computes.
  std::shared_ptr<const DeviceMesh> mesh;  // shared by the tensors on it; null for explicit boxes
  std::vector<Placement> placements;       // one per mesh dimension

  /// A ShardedTensor: the boxes that this rank holds and no other rank does. Only the dtype of the
  /// leaf's own view is used; it has no memory.
  struct Part {
    Box box;
    TensorView view;  // its shape is box.sizes
  };
  std::vector<Part> parts;
};

/// A box of the global tensor, and the local memory that holds it.
struct ShardView {
  Box box;
  TensorView view;  // its shape is box.sizes
};

/// Returns what `rank` holds, without boxes that have no elements; `local` is the leaf's view.
/// kInvalidArgument: `local` does not have the shape that the mesh and placements imply or one
/// stride per dimension; the view of a part does not have the shape of its box or the dtype of
/// `local`; a box is not inside the global shape; or ShardOf rejects the placements or the rank.
Result<std::vector<ShardView>> ShardViewsOf(const Sharding& sharding, const TensorView& local,
                                            uint32_t rank);

}  // namespace cairn::core
