#pragma once
/// Statistics of the elements of pages in device memory.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/internal/device_job.h"

namespace cairn::cuda::internal {

/// All pointers refer to device memory that must stay valid until the work is done.
struct SummarizeLaunch {
  const SummarizeJob* jobs = nullptr;
  uint32_t job_count = 0;
  PageSummary* summaries = nullptr;  // output: one per job
};

/// Enqueues the statistics of all jobs. `multiprocessors` is the number that the device has; it
/// bounds the grid.
cudaError_t LaunchSummarize(const SummarizeLaunch& launch, int multiprocessors,
                            cudaStream_t stream);

}  // namespace cairn::cuda::internal
