// The kernel that lists changed elements: one warp per page.
//
// Each lane compares 16 bytes at a time. If any of the 512 bytes of a warp differ, the lanes count
// their elements that differ, and a prefix sum of these counts yields the places of the elements in
// the list, which is therefore ascending.

#include <cuda_runtime.h>

#include <algorithm>

#include "cuda/internal/compare_kernel.h"
#include "cuda/internal/lane_words.h"

namespace cairn::cuda::internal {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarpLanes = 32;
constexpr int kWarpsPerBlock = 8;
constexpr int kBlocksPerMultiprocessor = 4;
// As in the kernel that digests: short blocks let streams of higher priority begin soon.
constexpr uint32_t kBlockWaves = 256;

/// Returns the sum of `value` over this lane and the lanes before it.
__device__ __forceinline__ uint32_t PrefixSum(uint32_t value, int lane) {
  for (int distance = 1; distance < kWarpLanes; distance *= 2) {
    const uint32_t before = __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(distance));
    if (lane >= distance) value += before;
  }
  return value;
}

/// Compares a page with all lanes of a warp, and returns the count in every lane.
template <typename T, bool kAligned>
__device__ uint32_t ComparePage(const CompareJob& job, unsigned char* list, int lane) {
  constexpr uint32_t kLaneElements = kLaneBytes / sizeof(T);
  auto* const differences = reinterpret_cast<T*>(list);
  auto* const positions = reinterpret_cast<uint16_t*>(list + ListPositionsOffset(sizeof(T)));
  const uint32_t limit = MaxListedElements(job.length_bytes, sizeof(T));
  uint32_t count = 0;
  for (uint32_t begin = 0; begin < job.length_bytes; begin += kWarpLanes * kLaneBytes) {
    const uint32_t at = begin + static_cast<uint32_t>(lane) * kLaneBytes;
    const uint32_t bytes = at < job.length_bytes ? min(kLaneBytes, job.length_bytes - at) : 0;
    const Words page = LoadWords<kAligned>(job.page + at, bytes);
    const Words base = LoadWords<kAligned>(job.base + at, bytes);
    const bool differs = page.low != base.low || page.high != base.high;
    if (!__any_sync(kAllLanes, differs)) continue;
    uint32_t own = 0;
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      own += ElementOf<T>(page, i) != ElementOf<T>(base, i);
    }
    const uint32_t until_here = PrefixSum(own, lane);
    uint32_t place = count + until_here - own;
    count += __shfl_sync(kAllLanes, until_here, kWarpLanes - 1);
    if (!differs) continue;
    StoreWords<kAligned>(job.base + at, page, bytes);
    for (uint32_t i = 0; i < kLaneElements && place < limit; ++i) {
      const T now = ElementOf<T>(page, i);
      const T before = ElementOf<T>(base, i);
      if (now == before) continue;
      positions[place] = static_cast<uint16_t>(at / sizeof(T) + i);
      differences[place] = static_cast<T>(now - before);
      ++place;
    }
  }
  return count > limit ? kMostlyChangedPage : count;
}

template <typename T>
__device__ __forceinline__ uint32_t ComparePage(const CompareJob& job, unsigned char* list,
                                                int lane) {
  const bool aligned =
      (reinterpret_cast<uintptr_t>(job.page) | reinterpret_cast<uintptr_t>(job.base)) %
          kLaneBytes ==
      0;
  return aligned ? ComparePage<T, true>(job, list, lane) : ComparePage<T, false>(job, list, lane);
}

__global__ void __launch_bounds__(kWarpsPerBlock* kWarpLanes, kBlocksPerMultiprocessor)
    ComparePages(const CompareLaunch launch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpLanes;
  const uint32_t warps = gridDim.x * kWarpsPerBlock;
  for (uint32_t number = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarpLanes;
       number < launch.job_count; number += warps) {
    const CompareJob job = launch.jobs[number];
    unsigned char* const list = launch.lists + static_cast<uint64_t>(number) * kListBytes;
    uint32_t count = 0;
    switch (job.element_bytes) {
      case 2:
        count = ComparePage<uint16_t>(job, list, lane);
        break;
      case 4:
        count = ComparePage<uint32_t>(job, list, lane);
        break;
      case 8:
        count = ComparePage<uint64_t>(job, list, lane);
        break;
      default:
        count = ComparePage<unsigned char>(job, list, lane);
        break;
    }
    if (lane == 0) launch.counts[number] = count;
  }
}

}  // namespace

cudaError_t LaunchCompare(const CompareLaunch& launch, int multiprocessors, cudaStream_t stream) {
  if (launch.job_count == 0) return cudaSuccess;
  const uint32_t wanted = (launch.job_count + kWarpsPerBlock - 1) / kWarpsPerBlock;
  const uint32_t most =
      static_cast<uint32_t>(multiprocessors) * kBlocksPerMultiprocessor * kBlockWaves;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::min(wanted, most));
  config.blockDim = dim3(kWarpsPerBlock * kWarpLanes);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, ComparePages, launch);
}

}  // namespace cairn::cuda::internal
