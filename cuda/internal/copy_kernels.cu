// Packing and unpacking: one warp per copy job, one thread per unit of a strided tensor.

#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/internal/kernels.h"

namespace cairn::cuda::internal {
// Not unnamed: kernels of an unnamed namespace are named after the path of their source.
inline namespace copy_kernels {

constexpr int kWarpLanes = 32;
constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarpLanes;
constexpr int kBlocksPerMultiprocessor = 8;

/// Copies as many complete units as fit from `begin` on, by one warp. Returns the byte after them.
template <typename Unit>
__device__ uint64_t CopyUnits(const CopyJob& job, uint64_t begin, int lane) {
  const uint64_t units = (job.length_bytes - begin) / sizeof(Unit);
  const auto* const source = reinterpret_cast<const Unit*>(job.source + begin);
  auto* const target = reinterpret_cast<Unit*>(job.target + begin);
  for (uint64_t i = lane; i < units; i += kWarpLanes) target[i] = source[i];
  return begin + units * sizeof(Unit);
}

template <typename Unit>
__device__ uint64_t ZeroUnits(const CopyJob& job, uint64_t begin, int lane) {
  const uint64_t units = (job.length_bytes - begin) / sizeof(Unit);
  auto* const target = reinterpret_cast<Unit*>(job.target + begin);
  for (uint64_t i = lane; i < units; i += kWarpLanes) target[i] = Unit{};
  return begin + units * sizeof(Unit);
}

__global__ void __launch_bounds__(kThreads) CopyBytes(const CopyJob* jobs, uint32_t count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const uint32_t warps = gridDim.x * kWarpsPerBlock;
  for (uint32_t i = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarpLanes; i < count; i += warps) {
    const CopyJob job = jobs[i];
    const auto target = reinterpret_cast<uintptr_t>(job.target);
    if (job.source == nullptr) {
      uint64_t done = 0;
      if (target % 16 == 0) done = ZeroUnits<uint4>(job, done, lane);
      ZeroUnits<unsigned char>(job, done, lane);
      continue;
    }
    const uintptr_t both = target | reinterpret_cast<uintptr_t>(job.source);
    uint64_t done = 0;
    if (both % 16 == 0) {
      done = CopyUnits<uint4>(job, done, lane);
    } else if (both % 8 == 0) {
      done = CopyUnits<uint64_t>(job, done, lane);
    } else if (both % 4 == 0) {
      done = CopyUnits<uint32_t>(job, done, lane);
    } else if (both % 2 == 0) {
      done = CopyUnits<uint16_t>(job, done, lane);
    }
    CopyUnits<unsigned char>(job, done, lane);
  }
}

/// `Index` has 32 bits where they are enough, because 64-bit divisions are many times slower.
template <typename Unit, typename Index>
__global__ void __launch_bounds__(kThreads)
    CopyStrided(const StridedShape shape, unsigned char* tensor, uint64_t begin, uint64_t count,
                unsigned char* packed, bool unpack) {
  auto* const row_major = reinterpret_cast<Unit*>(packed);
  const uint64_t threads = static_cast<uint64_t>(gridDim.x) * kThreads;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += threads) {
    auto rest = static_cast<Index>(begin + i);
    uint64_t offset_bytes = 0;
    for (int d = shape.dims - 1; d >= 0; --d) {
      const auto size = static_cast<Index>(shape.sizes[d]);
      const Index outer = rest / size;
      offset_bytes += (rest - outer * size) * shape.steps_bytes[d];
      rest = outer;
    }
    auto* const element = reinterpret_cast<Unit*>(tensor + offset_bytes);
    if (unpack) {
      *element = row_major[i];
    } else {
      row_major[i] = *element;
    }
  }
}

cudaLaunchConfig_t ConfigFor(uint64_t threads, int multiprocessors, cudaStream_t stream) {
  const uint64_t wanted = (threads + kThreads - 1) / kThreads;
  const uint64_t most = static_cast<uint64_t>(multiprocessors) * kBlocksPerMultiprocessor;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min(wanted, most)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return config;
}

template <typename Unit>
cudaError_t LaunchStridedOf(const cudaLaunchConfig_t& config, const StridedCopyJob& job) {
  const bool small =
      job.begin_units + job.unit_count <= UINT32_MAX &&
      std::ranges::all_of(job.shape.sizes, [](uint64_t size) { return size <= UINT32_MAX; });
  return cudaLaunchKernelEx(
      &config, small ? CopyStrided<Unit, uint32_t> : CopyStrided<Unit, uint64_t>, job.shape,
      job.tensor, job.begin_units, job.unit_count, job.packed, job.unpack);
}

}  // namespace copy_kernels

cudaError_t LaunchCopies(const CopyJob* jobs, uint32_t count, int multiprocessors,
                         cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const cudaLaunchConfig_t config =
      ConfigFor(uint64_t{count} * kWarpLanes, multiprocessors, stream);
  return cudaLaunchKernelEx(&config, CopyBytes, jobs, count);
}

cudaError_t LaunchStrided(const StridedCopyJob& job, int multiprocessors, cudaStream_t stream) {
  if (job.unit_count == 0) return cudaSuccess;
  const cudaLaunchConfig_t config = ConfigFor(job.unit_count, multiprocessors, stream);
  const auto launch = [&](auto unit) { return LaunchStridedOf<decltype(unit)>(config, job); };
  switch (job.shape.unit_bytes) {
    case 1:
      return launch(uint8_t{});
    case 2:
      return launch(uint16_t{});
    case 4:
      return launch(uint32_t{});
    case 8:
      return launch(uint64_t{});
    case 16:
      return launch(uint4{});
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cairn::cuda::internal
