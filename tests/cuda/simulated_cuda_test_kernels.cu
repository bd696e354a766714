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

__device__ __forceinline__ uint64_t SumOfWarp(uint64_t value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_down_sync(kAll, value, lanes);
  return value;
}

__global__ void Sum(const uint32_t* __restrict__ values, uint64_t count, unsigned long long* sum) {
  __shared__ uint64_t sums_of_warps[32];
  uint64_t mine = 0;
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    mine += __ldg(values + i);
  }
  mine = SumOfWarp(mine);
  const unsigned lane = threadIdx.x % 32;
  const unsigned warp = threadIdx.x / 32;
  if (lane == 0) sums_of_warps[warp] = mine;
  __syncthreads();
  if (warp > 0) return;
  mine = SumOfWarp(lane < blockDim.x / 32 ? sums_of_warps[lane] : 0);
  if (lane == 0) atomicAdd(sum, static_cast<unsigned long long>(mine));
}

__global__ void WarpOperations(uint64_t* results) {
  const unsigned lane = threadIdx.x;
  uint64_t* const mine = results + 6 * lane;
  mine[0] = __shfl_sync(kAll, lane * 10, 3);
  mine[1] = __shfl_xor_sync(kAll, uint64_t{lane} << 40, 5);
  mine[2] = __shfl_down_sync(kAll, static_cast<int>(lane), 3, 8);
  mine[3] = __shfl_up_sync(kAll, lane, 2u, 16);
  mine[4] = __ballot_sync(kAll, lane % 3 == 0);
  // The two halves of the warp take different branches, each with its mask.
  if (lane < 16) {
    mine[5] = __any_sync(0x0000ffffu, lane == 7) ? 1 : 0;
  } else {
    mine[5] = __shfl_sync(0xffff0000u, lane, 31);
  }
  __syncwarp();
}

__global__ void Store(uint32_t* target, uint32_t value) { *target = value; }

__global__ void Hang() {
  if (threadIdx.x == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

cudaLaunchConfig_t Config(unsigned block_count, unsigned thread_count, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(block_count);
  config.blockDim = dim3(thread_count);
  config.stream = stream;
  return config;
}

}  // namespace

cudaError_t LaunchFill(uint32_t* target, uint64_t count, uint32_t value, cudaStream_t stream) {
  const cudaLaunchConfig_t config = Config(4, 256, stream);
  return cudaLaunchKernelEx(&config, Fill, target, count, value);
}

cudaError_t LaunchSum(const uint32_t* values, uint64_t count, unsigned long long* sum,
                      unsigned block_count, unsigned thread_count, cudaStream_t stream) {
  const cudaLaunchConfig_t config = Config(block_count, thread_count, stream);
  return cudaLaunchKernelEx(&config, Sum, values, count, sum);
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
