#pragma once
/// Kernels for the tests of the simulation itself.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::testing {

/// Sets target[i] = value. Threads do not wait for each other.
cudaError_t LaunchFill(uint32_t* target, uint64_t count, uint32_t value, cudaStream_t stream,
                       unsigned block_count = 4, unsigned thread_count = 256);

/// Each of 32 lanes writes the results of shuffles and votes: 4 values per lane.
cudaError_t LaunchWarpOperations(uint64_t* results, cudaStream_t stream);

/// Writes outside the allocation of `target`, at any offset.
cudaError_t LaunchStore(uint32_t* target, uint32_t value, cudaStream_t stream);

/// Hangs: the lanes of a warp wait for each other in operations with different masks.
cudaError_t LaunchHang(cudaStream_t stream);

}  // namespace cairn::testing
