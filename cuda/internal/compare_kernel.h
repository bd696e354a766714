#pragma once
/// Finds the elements of pages that differ from earlier versions in device memory.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/internal/device_job.h"

namespace cairn::cuda::internal {

/// The count of a page without a list: core::kMostlyChanged, whose header nvcc cannot read.
inline constexpr uint32_t kMostlyChangedPage = 0xffffffffu;

/// The memory of the list of one page: the differences of the elements to the earlier version, and
/// from ListPositionsOffset() on their positions (u16).
inline constexpr uint32_t kListBytes = 32 << 10;

/// Returns how many elements the list of a page of `length_bytes` may have; if more differ, the
/// page is mostly changed. The list is at most half as long as the page.
constexpr uint32_t MaxListedElements(uint32_t length_bytes, uint32_t element_bytes) {
  return length_bytes / 2 / (static_cast<uint32_t>(sizeof(uint16_t)) + element_bytes);
}
/// An even number, for every element size.
constexpr uint32_t ListPositionsOffset(uint32_t element_bytes) {
  constexpr uint32_t kMaxPageBytes = 2 * kListBytes;
  return MaxListedElements(kMaxPageBytes, element_bytes) * element_bytes;
}

/// All pointers refer to device memory that must stay valid until the work is done.
struct CompareLaunch {
  const CompareJob* jobs = nullptr;
  uint32_t job_count = 0;
  unsigned char* lists = nullptr;  // output: kListBytes for each job
  uint32_t* counts = nullptr;      // output: elements that differ, or kMostlyChangedPage
};

/// Enqueues the comparison of all jobs. `multiprocessors` is the number that the device has; it
/// bounds the grid.
cudaError_t LaunchCompare(const CompareLaunch& launch, int multiprocessors, cudaStream_t stream);

}  // namespace cairn::cuda::internal
