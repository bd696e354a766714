#pragma once
/// Copies within a device: many small ranges of bytes in one launch, and strided tensors.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/internal/device_job.h"

namespace cairn::cuda::internal {

/// Enqueues `count` copies that do not overlap. Fastest if no job is longer than about 8 KiB.
/// `jobs` is device memory that must stay valid until the work is done.
cudaError_t LaunchCopies(const CopyJob* jobs, uint32_t count, int multiprocessors,
                         cudaStream_t stream);

/// Enqueues a copy between a strided tensor and packed memory. cudaErrorInvalidValue: the unit of
/// the shape is not 1, 2, 4, 8 or 16 bytes.
cudaError_t LaunchStrided(const StridedCopyJob& job, int multiprocessors, cudaStream_t stream);

}  // namespace cairn::cuda::internal
