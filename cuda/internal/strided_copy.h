#pragma once
/// Copies between a strided tensor and packed memory of the same device.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "core/tensor/tensor.h"
#include "kv/base/error.h"

namespace cairn::cuda::internal {

enum class StridedDirection { kPack, kUnpack };

/// Enqueues on `stream` a copy between `packed` and the same number of bytes from `begin_bytes` on
/// in the row-major form of `view`. The device of `stream` must be current. kUnimplemented: the
/// tensor has too many dimensions that cannot be joined (StridedShape::kMaxDims).
Result<void> EnqueueStridedCopy(const core::TensorView& view, uint64_t begin_bytes,
                                std::span<unsigned char> packed, StridedDirection direction,
                                int multiprocessors, cudaStream_t stream);

}  // namespace cairn::cuda::internal
