#pragma once
/// Multiplies loaded matrices by the factors of their blocks.

#include <span>
#include <vector>

#include "core/convert/converted_key.h"
#include "core/tensor/index_map.h"
#include "core/tensor/tensor.h"

namespace cairn::core::internal {

/// A loaded part of a matrix that waits for its factors.
struct ScaledPart {
  IndexMap map;  // from the stored matrix to `target`
  TensorTarget target;
  SourcePiece::BlockScale scale;
  Shape source_shape;
};

/// Multiplies the part by `factors`, the row-major matrix of one factor per block. Each product is
/// computed in float32 and rounded to the dtype of the target, to nearest, ties to even. Because a
/// target contains every 8-bit float exactly, the result is that of a multiplication before the
/// cast. Requires a target in host memory of a dtype that 8-bit floats are cast to. Uses all cores.
void MultiplyBlocks(const ScaledPart& part, std::span<const float> factors);

}  // namespace cairn::core::internal
