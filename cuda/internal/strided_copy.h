#pragma once
/// Strided tensors in the form that the copy kernels use: few dimensions, wide units; and copies
/// between them and packed memory of the same device.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

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

enum class StridedDirection { kPack, kUnpack };

/// Enqueues on `stream` a copy between `packed` and the same number of bytes from `begin_bytes` on
/// in the row-major form of `view`. The device of `stream` must be current. kUnimplemented: the
/// tensor has too many dimensions that cannot be joined (StridedShape::kMaxDims).
Result<void> EnqueueStridedCopy(const core::TensorView& view, uint64_t begin_bytes,
                                std::span<unsigned char> packed, StridedDirection direction,
                                int multiprocessors, cudaStream_t stream);

}  // namespace cairn::cuda::internal
