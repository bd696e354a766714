#pragma once
/// Arithmetic that keeps a GPU busy, for measurements beside it.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::cuda::internal {

/// Enqueues a kernel that fills the device and does `rounds` of dependent arithmetic in each
/// thread. `sink` is one word of device memory.
cudaError_t LaunchCompute(uint64_t rounds, uint32_t* sink, int multiprocessors,
                          cudaStream_t stream);

}  // namespace cairn::cuda::internal
