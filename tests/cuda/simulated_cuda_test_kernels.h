#pragma once
/// Kernels for the tests of the simulation itself.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace cairn::testing {

/// Sets target[i] = value. Threads do not wait for each other.
cudaError_t LaunchFill(uint32_t* target, uint64_t count, uint32_t value, cudaStream_t stream);

/// Adds up `count` values into *sum (which must be 0): shuffles in a warp, shared memory and a
/// barrier in a block, an atomic between blocks.
cudaError_t LaunchSum(const uint32_t* values, uint64_t count, unsigned long long* sum,
                      unsigned block_count, unsigned thread_count, cudaStream_t stream);

/// Each of 32 lanes writes the results of all kinds of shuffles and votes: 6 values per lane.
cudaError_t LaunchWarpOperations(uint64_t* results, cudaStream_t stream);

/// Writes outside the allocation of `target`, at any offset.
cudaError_t LaunchStore(uint32_t* target, uint32_t value, cudaStream_t stream);

/// Hangs: thread 0 waits at a barrier that the other threads, which wait for a warp operation,
/// never reach.
cudaError_t LaunchHang(cudaStream_t stream);

}  // namespace cairn::testing
