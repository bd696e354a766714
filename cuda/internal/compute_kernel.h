#pragma once
/// Arithmetic that keeps a GPU busy while other work is measured.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::cuda::internal {

/// Enqueues a kernel that occupies all multiprocessors and executes `rounds` rounds of dependent
/// arithmetic per thread. `sink` is one word of device memory, which the kernel does not change.
cudaError_t LaunchCompute(uint64_t rounds, uint32_t* sink, int multiprocessors,
                          cudaStream_t stream);

}  // namespace cairn::cuda::internal
