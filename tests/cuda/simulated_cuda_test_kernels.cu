// Kernels for the tests of the simulation itself.
#include <cuda_runtime.h>

#include "tests/cuda/simulated_cuda_test_kernels.h"

namespace cairn::testing {
namespace {

__global__ void Store(uint32_t* target, uint32_t value) { *target = value; }

// Lane 0 waits for lane 1, that for lane 2, and that for lane 0.
__global__ void Hang() {
  const unsigned masks[] = {0x3u, 0x6u, 0x5u};
  if (threadIdx.x < 3) (void)__ballot_sync(masks[threadIdx.x], 1);
}

cudaLaunchConfig_t OneBlock(unsigned thread_count, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(thread_count);
  config.stream = stream;
  return config;
}

}  // namespace

cudaError_t LaunchStore(uint32_t* target, uint32_t value, cudaStream_t stream) {
  const cudaLaunchConfig_t config = OneBlock(1, stream);
  return cudaLaunchKernelEx(&config, Store, target, value);
}

cudaError_t LaunchHang(cudaStream_t stream) {
  const cudaLaunchConfig_t config = OneBlock(64, stream);
  return cudaLaunchKernelEx(&config, Hang);
}

}  // namespace cairn::testing
