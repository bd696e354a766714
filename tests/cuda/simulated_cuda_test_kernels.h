#pragma once
/// Kernels for the tests of the simulation itself.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::testing {

/// Writes outside the allocation of `target`, at any offset.
cudaError_t LaunchStore(uint32_t* target, uint32_t value, cudaStream_t stream);

/// Hangs: the lanes of a warp wait for each other in operations with different masks.
cudaError_t LaunchHang(cudaStream_t stream);

}  // namespace cairn::testing
