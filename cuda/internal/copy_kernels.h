#pragma once
/// Copies within a device: many small runs of bytes at once, and strided tensors.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/internal/device_job.h"

namespace cairn::cuda::internal {

/// Enqueues copies of `count` runs that do not overlap; best when none is longer than some 8 KiB.
/// `jobs` is device memory that stays until the work is done.
cudaError_t LaunchCopies(const CopyJob* jobs, uint32_t count, int multiprocessors,
                         cudaStream_t stream);

/// Enqueues: units [begin, begin + count) of the row-major form of a strided tensor at `tensor` go
/// to `packed`, or (`unpack`) come from there. `packed` is aligned to the unit.
cudaError_t LaunchStrided(const StridedShape& shape, unsigned char* tensor, uint64_t begin,
                          uint64_t count, unsigned char* packed, bool unpack, int multiprocessors,
                          cudaStream_t stream);

}  // namespace cairn::cuda::internal
