#pragma once
/// Kernels that the simulation itself is tested with.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::testing {

/// target[i] = value, by blocks that need not wait.
cudaError_t LaunchFill(uint32_t* target, uint64_t count, uint32_t value, cudaStream_t stream);

/// Adds up `count` values into *sum (which must be 0): shuffles in a warp, shared memory and a
/// barrier in a block, an atomic between blocks.
cudaError_t LaunchSum(const uint32_t* values, uint64_t count, unsigned long long* sum,
                      unsigned block_count, unsigned thread_count, cudaStream_t stream);

/// Each lane writes what each kind of shuffle and vote gives it: 6 values a lane, 32 lanes.
cudaError_t LaunchWarpOperations(uint64_t* results, cudaStream_t stream);

/// Writes beside `target`'s allocation, or anywhere else.
cudaError_t LaunchStore(uint32_t* target, uint32_t value, cudaStream_t stream);

/// Thread 0 waits at a barrier that the others, waiting for a warp operation, never reach.
cudaError_t LaunchHang(cudaStream_t stream);

}  // namespace cairn::testing
