#pragma once
/// Blocks of a simulated kernel: their threads and warps. The base of cuda_on_host.h,
/// which provides the language of .cu files.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

// The position of the running thread of a kernel. The simulation sets it at every switch of
// threads.
extern thread_local constinit uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern thread_local constinit uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern thread_local constinit dim3 blockDim __attribute__((tls_model("initial-exec")));
extern thread_local constinit dim3 gridDim __attribute__((tls_model("initial-exec")));

namespace cairn::simulated_cuda {

/// The result of a shuffle from a lane that does not take part, which CUDA leaves undefined.
inline constexpr uint64_t kUndefinedLane = 0xBAD1A9EBAD1A9E00u;

/// Enqueues a kernel on config.stream, which calls `thread_body` once for every thread of every
/// block, block after block. Returns the errors of cudaLaunchKernelEx.
cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, std::function<void()> thread_body);

/// Returns the lane of the running thread in its warp.
inline unsigned ThisLane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

/// Waits for the lanes of `mask`. Returns the lanes for which `predicate` is true.
uint32_t WarpBallot(uint32_t mask, bool predicate);
/// Waits for the lanes of `mask`. Returns the `value` of lane `source`.
uint64_t WarpShuffle(uint32_t mask, uint64_t value, unsigned source);

}  // namespace cairn::simulated_cuda
