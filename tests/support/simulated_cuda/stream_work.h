#pragma once
/// Functions for other simulated libraries, such as NCCL: they enqueue work on a stream.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace cairn::simulated_cuda {

/// Enqueues `work` on `stream`, which must belong to `device`. The work may wait. It is skipped if
/// the device is lost, and must end by itself if the device is lost while it runs.
cudaError_t EnqueueWork(cudaStream_t stream, int device, std::function<void()> work);

/// Returns the address at which the simulation accesses memory that a kernel of `device` can
/// access: memory of the device, or page-locked memory. Returns null if [address, address + bytes)
/// is not such memory.
std::byte* AccessibleByDevice(const void* address, uint64_t bytes, int device);

bool IsLost(int device);

}  // namespace cairn::simulated_cuda
