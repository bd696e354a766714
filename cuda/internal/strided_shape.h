#pragma once
/// Conversion of a strided tensor to the form that the copy kernels use: few dimensions, wide
/// units.

#include <cstdint>

#include "core/tensor/tensor.h"
#include "cuda/internal/device_job.h"
#include "kv/base/error.h"

namespace cairn::cuda::internal {

/// Joins dimensions that are contiguous with each other, drops dimensions of size 1, and counts the
/// innermost dimension in the widest units (at most 16 bytes) that its length, all strides, the
/// address of the tensor and `alignment` allow. `alignment`: divides all begins and ends of the
/// copied ranges, both in the row-major form and in the packed memory; 0 for no limit.
/// kUnimplemented: more than StridedShape::kMaxDims dimensions remain.
Result<StridedShape> ShapeForCopy(const core::TensorView& view, uint64_t alignment);

}  // namespace cairn::cuda::internal
