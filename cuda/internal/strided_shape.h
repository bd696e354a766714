#pragma once
/// A strided tensor as the copy kernels want it: few dimensions, wide units.

#include <cstdint>

#include "core/tensor/tensor.h"
#include "cuda/internal/device_job.h"
#include "kv/error.h"

namespace cairn::cuda::internal {

/// Dimensions that lie one behind another become one, those of size 1 go, and the innermost run is
/// counted in the widest units (at most 16 bytes) that it, all strides, the address of the tensor
/// and `alignment` allow. `alignment`: all that is copied begins and ends on multiples of it, in
/// the row-major form and in the packed memory; 0 for no limit. kUnimplemented: more than
/// StridedShape::kMaxDims dimensions are left.
Result<StridedShape> ShapeForCopy(const core::TensorView& view, uint64_t alignment);

}  // namespace cairn::cuda::internal
