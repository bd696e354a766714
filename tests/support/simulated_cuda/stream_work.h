#pragma once
/// What other simulated libraries, as NCCL's, build on: work of their own in a stream.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cairn::simulated_cuda {

/// Puts `work` into `stream`, which must be `device`'s. It may wait; it is left out once the device
/// is lost, and must end by itself when that happens while it runs.
cudaError_t EnqueueWork(cudaStream_t stream, int device, std::function<void()> work);

/// Where the simulation itself reads and writes memory that a kernel of `device` could: its own, or
/// page-locked. Null if [address, address + bytes) is not that.
std::byte* AccessibleByDevice(const void* address, uint64_t bytes, int device);

bool IsLost(int device);

}  // namespace cairn::simulated_cuda
