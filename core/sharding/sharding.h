#pragma once
/// Which part of a global tensor the memory of one rank is: DTensor's mesh and placements, or
/// ShardedTensor's explicit boxes.

#include <cstdint>
#include <memory>
#include <vector>

#include "core/sharding/mesh.h"
#include "core/sharding/placement.h"
#include "core/tensor/tensor.h"

namespace cairn::core {

/// Of one tensor of a state dict.
struct Sharding {
  Shape global_shape;

  /// A DTensor: the leaf's view is the local tensor, as ShardOf says it.
  std::shared_ptr<const DeviceMesh> mesh;  // shared by the tensors on it; null for explicit boxes
  std::vector<Placement> placements;       // one a mesh dimension

  /// A ShardedTensor: the boxes that this rank holds, each held by no other; the leaf's own view
  /// has no memory then, only its dtype counts.
  struct Part {
    Box box;
    TensorView view;  // of shape box.sizes
  };
  std::vector<Part> parts;
};

/// A box of the global tensor and the local memory that holds it.
struct LocalPiece {
  Box box;
  TensorView view;  // of shape box.sizes
};

/// What `rank` holds; `local` is the leaf's view. Pieces without elements are left out.
/// kInvalidArgument: `local` has not the shape that mesh and placements say, a part's view has not
/// its box's, a box leaves the shape, dtypes differ, or as ShardOf.
Result<std::vector<LocalPiece>> PiecesOf(const Sharding& sharding, const TensorView& local,
                                         uint32_t rank);

}  // namespace cairn::core
