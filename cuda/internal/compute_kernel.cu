// A chain of multiply-adds per thread.

#include <cuda_runtime.h>

#include "cuda/internal/compute_kernel.h"

namespace cairn::cuda::internal {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 4;

__global__ void Compute(uint64_t rounds, uint32_t* sink) {
  float value = static_cast<float>(threadIdx.x);
  for (uint64_t i = 0; i < rounds; ++i) value = value * 0.999f + 1.0f;
  // Never true, but the compiler cannot know that, so it must keep the arithmetic.
  if (value < 0) *sink = 1;
}

}  // namespace

cudaError_t LaunchCompute(uint64_t rounds, uint32_t* sink, int multiprocessors,
                          cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(multiprocessors * kBlocksPerMultiprocessor));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, Compute, rounds, sink);
}

}  // namespace cairn::cuda::internal
