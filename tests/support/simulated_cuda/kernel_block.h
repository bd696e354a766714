#pragma once
/// Blocks of a simulated kernel: their threads, barriers and warps. What cuda_on_host.h builds the
/// language of .cu files on.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

// Where a thread of a kernel is. Set by the simulation whenever another thread goes on.
extern thread_local constinit uint3 threadIdx __attribute__((tls_model("initial-exec")));
extern thread_local constinit uint3 blockIdx __attribute__((tls_model("initial-exec")));
extern thread_local constinit dim3 blockDim __attribute__((tls_model("initial-exec")));
extern thread_local constinit dim3 gridDim __attribute__((tls_model("initial-exec")));

namespace cairn::simulated_cuda {

/// The value of a shuffle from a lane that takes no part, which the language leaves undefined.
inline constexpr uint64_t kUndefinedLane = 0xBAD1A9EBAD1A9E00u;

/// Puts a kernel into config.stream: `thread_body` is run once for every thread of every block,
/// block after block. Errors as of cudaLaunchKernelEx.
cudaError_t LaunchKernel(const cudaLaunchConfig_t& config, const void* kernel,
                         std::function<void()> thread_body);

/// The thread's place in its warp.
inline unsigned ThisLane() {
  return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

/// Waits for the block's other threads. Returns in how many of them `predicate` held.
int BlockBarrier(bool predicate);
/// Waits for the lanes of `mask`. Returns the lanes for which `predicate` held.
uint32_t WarpBallot(uint32_t mask, bool predicate);
/// Waits for the lanes of `mask`. Returns the `value` of lane `source`.
uint64_t WarpShuffle(uint32_t mask, uint64_t value, unsigned source);
/// Waits for the lanes of `mask`.
void WarpSync(uint32_t mask);
/// Ends the kernel and loses its device with `error`.
[[noreturn]] void FailKernel(cudaError_t error);

}  // namespace cairn::simulated_cuda
