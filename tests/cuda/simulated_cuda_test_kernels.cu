// Kernels for the tests of the simulation itself.
#include <cuda_runtime.h>

#include "tests/cuda/simulated_cuda_test_kernels.h"

namespace cairn::testing {
namespace {

constexpr unsigned kAll = 0xffffffffu;

__global__ void __launch_bounds__(256) Fill(uint32_t* target, uint64_t count, uint32_t value) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    target[i] = value;
  }
}

__global__ void WarpOperations(uint64_t* results) {
  const unsigned lane = threadIdx.x;
  uint64_t* const mine = results + 4 * lane;
  mine[0] = __shfl_xor_sync(kAll, lane, 16);
  mine[1] = __shfl_xor_sync(kAll, uint64_t{lane} << 40, 5);
  mine[2] = __ballot_sync(kAll, lane % 3 == 0);
  // The two halves of the warp take different branches, each with its mask.
  if (lane < 16) {
    mine[3] = __ballot_sync(0x0000ffffu, lane == 7);
  } else {
    mine[3] = __shfl_xor_sync(0xffff0000u, lane, 1);
  }
}

__global__ void Store(uint32_t* target, uint32_t value) { *target = value; }

// Lane 0 waits for lane 1, that for lane 2, and that for lane 0.
__global__ void Hang() {
  const unsigned masks[] = {0x3u, 0x6u, 0x5u};
  if (threadIdx.x < 3) (void)__ballot_sync(masks[threadIdx.x], 1);
}

cudaLaunchConfig_t Config(unsigned block_count, unsigned thread_count, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(block_count);
  config.blockDim = dim3(thread_count);
  config.stream = stream;
  return config;
}

}  // namespace

cudaError_t LaunchFill(uint32_t* target, uint64_t count, uint32_t value, cudaStream_t stream,
                       unsigned block_count, unsigned thread_count) {
  const cudaLaunchConfig_t config = Config(block_count, thread_count, stream);
  return cudaLaunchKernelEx(&config, Fill, target, count, value);
}

cudaError_t LaunchWarpOperations(uint64_t* results, cudaStream_t stream) {
  const cudaLaunchConfig_t config = Config(1, 32, stream);
  return cudaLaunchKernelEx(&config, WarpOperations, results);
}

cudaError_t LaunchStore(uint32_t* target, uint32_t value, cudaStream_t stream) {
  const cudaLaunchConfig_t config = Config(1, 1, stream);
  return cudaLaunchKernelEx(&config, Store, target, value);
}

cudaError_t LaunchHang(cudaStream_t stream) {
  const cudaLaunchConfig_t config = Config(1, 64, stream);
  return cudaLaunchKernelEx(&config, Hang);
}

}  // namespace cairn::testing
